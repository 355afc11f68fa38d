"""Every synchronizing instruction of the kernel is needed and watched: taken out or weakened, one at a time, something must notice.

`make test` runs a sample; all of them, a quarter of an hour on two cores, with

    python -m pytest -m faults -n 2 tests/kernels/test_faults.py
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fault_runs import BF16, SMALL_LAUNCHES, SUBJECTS, catalogue, how_noticed, notice, sign_of, subject
from kernel_faults import RULES
from mega_moe_runs import Layer
from warp_barriers import EXPLAINED, warp_barriers_of

from first_finding import assert_noticed, first_sign
from megamoe_dsl.artifact.compile import compile_kernel
from sweep import sample

EXPLAINED_BARRIERS = {
    "pull_tokens": (0,),
    "load_chunk": (1,),
    "next_tile": (*range(4, 13), 17, 19),
    "received": (13,),
    "publish_blocks": (14, 15, 16),
    "start_loads": (20, 21),
    "combine_tokens": (24,),
}
"""Numbers of the warp barriers that order no accesses of different lanes, by the function that they stand in."""
MAP_FENCES = ("dropped", "of a smaller scope")
UNNOTICED = {
    "spin skipped 5": "epilogue's wait for tokens: what the loader of the same CTA acquired reaches it through TMA, MMA and acc_full",
    "acquire made relaxed 4": "the same wait",
    "named barrier skipped 14": "after BEFORE_COMBINE: DISPATCH_EPILOGUE follows",
    "proxy fence dropped 0": "dispatch: it wrote its counts before BEFORE_PULL, so the epilogue's fence, after BEFORE_COMBINE, covers them",
    "proxy fence of the other space 0": "the same fence",
    "tcgen05 fence dropped 0": "after acc_empty: the fence after full follows before any MMA",
    "tcgen05 fence dropped 1": "after full: the fence after acc_empty came before; `test_one_fence_of_the_mma_warp_must_stay`",
    "mbarrier initialization fence dropped 0": "the cluster barrier's arrive releases everything itself",
    "election for all lanes 0": "every lane initializes the mbarriers alike",
    "election for all lanes 1": "every lane acquires and prefetches the same tensor maps",
    **{f"warp barrier skipped {n}": EXPLAINED[function] for function, numbers in EXPLAINED_BARRIERS.items() for n in numbers},
}
"""Faults that nothing shows, and why."""
UNNOTICED_BF16 = {
    **{f"tensor map fence {what} {n}": "the map of scales, which are not there" for what in MAP_FENCES for n in (1, 3, 5, 7)},
    **dict.fromkeys(("proxy fence dropped 1", "proxy fence of the other space 1"), "the token loader's: bulk copies brought it all"),
    "warp barrier skipped 2": "dispatch: lanes store no scales that one lane then counts",
}
"""Those of BF16 beside them."""
SAMPLE_BF16 = (
    "mbarrier wait skipped 11",
    "proxy fence dropped 2",
    "tcgen05 fence dropped 3",
    "bytes too many 0",
    "copy or store dropped 21",
)
SAMPLE = {
    "mbarrier wait skipped 11": ("race", "simulator error", "deadlock"),
    "warp barrier skipped 18": ("race",),
    "proxy fence dropped 1": ("race",),
    "system fence dropped 0": ("race",),
    "acquire of a smaller scope 1": ("race",),
    "bulk group wait skipped 0": ("race",),
    "tcgen05 fence dropped 3": ("race",),
    "TMEM load wait skipped 0": ("simulator error",),
    "arrival count too high 0": ("deadlock",),
    "bytes too many 0": ("deadlock",),
    "signal twice 1": ("workspace", "deadlock", "watchdog", "simulator error", "race"),
    "scale copy dropped 0": ("simulator error", "wrong result"),
}


@sample("5")
@pytest.mark.parametrize("number", range(2 * SUBJECTS))
def test_the_kernel_itself_shows_no_sign(number):
    assert how_noticed(None, number=number) is None


def test_every_rule_has_sites():
    """More than 200 faults; each rule finds something to break, and each exception is still there."""
    names = catalogue()
    assert len(names) > 200
    assert {rule.name for rule in RULES} == {name.rsplit(" ", 1)[0] for name in names}
    plain = catalogue(BF16)
    gone = [name for name in names if name not in plain]
    assert {name.rsplit(" ", 1)[0] for name in gone} == {"scale copy dropped", "copy or store dropped"} and len(gone) == 4
    assert set(UNNOTICED_BF16) | set(SAMPLE_BF16) <= set(plain)
    assert set(UNNOTICED) | set(SAMPLE) <= set(names)
    assert all(fault.apply(subject()[0].ptx) != subject()[0].ptx for fault in names.values())


def test_no_fault_leaves_a_guard_behind():
    """The guard of an instruction that is taken out would be the next one's."""
    ptx = subject()[0].ptx
    sites = [(fault.name, ptx[max(0, start - 16) : start]) for fault in catalogue().values() for start, _, _ in fault.edits]
    assert [name for name, before in sites if re.search(r"@!?%?p\d*\s*$", before)] == []


def test_explained_warp_barriers_are_where_they_are_said_to_be():
    """Each of the functions is explained once for both architectures (warp_barriers.py)."""
    found = warp_barriers_of(compile_kernel(subject()[0].config, line_info=True))
    places = {function: tuple(n for n, one in enumerate(found) if one.function == function) for function in EXPLAINED}
    assert {function: numbers for function, numbers in places.items() if numbers} == EXPLAINED_BARRIERS


def test_explained_warp_barriers_show_nowhere():
    """Not even when all of them are dropped at once."""
    compiled, case = subject(2)
    ptx = compiled.ptx
    faults = [catalogue(2)[f"warp barrier skipped {n}"] for numbers in EXPLAINED_BARRIERS.values() for n in numbers]
    for fault in sorted(faults, key=lambda fault: fault.edits[0][0], reverse=True):
        ptx = fault.apply(ptx)
    assert sign_of(replace(compiled, ptx=ptx), case, SMALL_LAUNCHES, seed=0) is None


@pytest.mark.parametrize("name", SAMPLE)
def test_fault_is_noticed(name):
    assert_noticed(SAMPLE[name], lambda: notice(name))


@pytest.mark.parametrize("name", SAMPLE_BF16)
def test_fault_of_bf16_is_noticed(name):
    assert first_sign(lambda: notice(name, BF16)) is not None


@pytest.mark.sweep
def test_one_fence_of_the_mma_warp_must_stay():
    """Each of the two is covered by the other; without both, the MMA overwrites an accumulator that is being read."""
    compiled, case = subject()
    ptx = compiled.ptx
    for name in ("tcgen05 fence dropped 1", "tcgen05 fence dropped 0"):
        ptx = catalogue()[name].apply(ptx)
    _, report = Layer.of(replace(compiled, ptx=ptx), case).launch(case)
    assert any("tmem" in finding.where for finding in report.findings)


@pytest.mark.faults
@pytest.mark.parametrize("first", [0, BF16], ids=["fp8", "bf16"])
@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_all_faults(rule, first):
    """All sites of a rule but the exceptions above."""
    silent = UNNOTICED if first == 0 else {**UNNOTICED, **UNNOTICED_BF16}
    names = [name for name in catalogue(first) if name.rsplit(" ", 1)[0] == rule and name not in silent]
    assert [name for name in names if first_sign(lambda name=name: notice(name, first)) is None] == []
