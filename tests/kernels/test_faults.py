"""Every synchronising instruction of the kernel is needed and watched: taken out or weakened, one at a time, something must notice.

`make test` runs a sample; all of them, a quarter of an hour on two cores, with

    python -m pytest -m faults -n 2 tests/kernels/test_faults.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from fault_runs import SUBJECTS, catalogue, how_noticed, notice, subject
from kernel_faults import RULES
from mega_moe_runs import Layer

from first_finding import assert_noticed, first_sign

UNNOTICED = {
    "spin skipped 5": "epilogue's wait for tokens: what the loader of the same CTA acquired reaches it through TMA, MMA and acc_full",
    "acquire made relaxed 4": "the same wait",
    "named barrier skipped 14": "after BEFORE_COMBINE: DISPATCH_EPILOGUE follows",
    "proxy fence dropped 0": "dispatch: it wrote its counts before BEFORE_PULL, so the epilogue's fence, after BEFORE_COMBINE, covers them",
    "proxy fence of the other space 0": "the same fence",
    "tcgen05 fence dropped 0": "after acc_empty: the fence after full follows before any MMA",
    "tcgen05 fence dropped 1": "after full: the fence after acc_empty came before; `test_one_fence_of_the_mma_warp_must_stay`",
    "mbarrier initialisation fence dropped 0": "the cluster barrier's arrive releases everything itself",
    "warp barrier skipped 0": "counts of ranks lie in registers, which the shuffles and ballots that follow wait for",
    "warp barrier skipped 1": "after the loads of a token: they tell the mbarrier that every lane waits for",
    "warp barrier skipped 13": "after the counts: what a lane has acquired it tells itself, by its own arrival at `counts`",
    "warp barrier skipped 20": "after the loads of a piece: they tell the mbarrier that every lane waits for",
    "warp barrier skipped 21": "the same, of the next piece",
    "warp barrier skipped 24": "the end of the kernel: nothing follows lane 0's wait for its last store",
    "election for all lanes 0": "every lane initialises the mbarriers alike",
    "election for all lanes 1": "every lane acquires and prefetches the same tensor maps",
}
SAMPLE = {
    "mbarrier wait skipped 11": ("race", "simulator error", "deadlock"),
    "spin skipped 3": ("race",),
    "named barrier skipped 3": ("race", "simulator error"),
    "warp barrier skipped 3": ("race",),
    "warp barrier skipped 18": ("race",),
    "proxy fence dropped 1": ("race",),
    "tensor map fence dropped 0": ("race",),
    "system fence dropped 0": ("race",),
    "release made relaxed 0": ("race",),
    "acquire of a smaller scope 1": ("race",),
    "bulk group wait skipped 0": ("race",),
    "bulk group commit dropped 0": ("race",),
    "tcgen05 fence dropped 3": ("race",),
    "TMEM load wait skipped 0": ("simulator error",),
    "arrival count too high 0": ("deadlock",),
    "bytes too many 0": ("deadlock",),
    "tcgen05 commit dropped 0": ("deadlock",),
    "signal twice 1": ("workspace", "deadlock", "watchdog", "simulator error", "race"),
    "scale copy dropped 0": ("simulator error", "wrong result"),
    "MMA dropped 3": ("wrong result", "simulator error"),
}


@pytest.mark.parametrize("number", range(SUBJECTS))
def test_the_kernel_itself_shows_no_sign(number):
    assert how_noticed(None, number=number) is None


def test_every_rule_has_sites():
    """More than 200 faults; each rule finds something to break, and each exception is still there."""
    names = catalogue()
    assert len(names) > 200
    assert {rule.name for rule in RULES} == {name.rsplit(" ", 1)[0] for name in names}
    assert set(UNNOTICED) | set(SAMPLE) <= set(names)
    assert all(fault.apply(subject()[0].ptx) != subject()[0].ptx for fault in names.values())


@pytest.mark.parametrize("name", SAMPLE)
def test_fault_is_noticed(name):
    assert_noticed(SAMPLE[name], lambda: notice(name))


def test_one_fence_of_the_mma_warp_must_stay():
    """Each of the two is covered by the other; without both, the MMA overwrites an accumulator that is being read."""
    compiled, case = subject()
    ptx = compiled.ptx
    for name in ("tcgen05 fence dropped 1", "tcgen05 fence dropped 0"):
        ptx = catalogue()[name].apply(ptx)
    _, report = Layer.of(replace(compiled, ptx=ptx), case).launch(case)
    assert any("tmem" in finding.where for finding in report.findings)


@pytest.mark.faults
@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_all_faults(rule):
    """All sites of a rule but the exceptions above."""
    names = [name for name in catalogue() if name.rsplit(" ", 1)[0] == rule and name not in UNNOTICED]
    assert [name for name in names if first_sign(lambda name=name: notice(name)) is None] == []
