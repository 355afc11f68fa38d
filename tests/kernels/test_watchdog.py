"""A wait that never ends becomes an error that names rank, SM, wait and barrier.

Hangs are made by taking one signal out of the PTX, or by not launching a rank at all.  Waits that begin together race for the record, so a
test names those that may win.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from mega_moe_runs import Layer, config, problem

from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.moe.dispatch import ALONE
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import WAITS as EP_WAITS
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import EpBarrier, EpWait
from megamoe_dsl.kernels.moe.layouts.smem_plan import WAITS, RankBarrier, Wait
from megamoe_dsl.layouts.records import RECORD
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.sim import Deadlock, simulator
from ptx_of import artifact

LIMIT_NS = 200_000  # longer than any honest wait of this layer
MANY = ALONE // 2 + 4  # tokens with two experts each, of which every rank has too many for SM 0 alone
MESSAGE = re.compile(r"rank (\d+), SM (\d+), \w+: wait (\w+) \(([\w ]+) (\w+)\) exceeded its limit: expected (\w+), saw (\w+)")
GRID_SIGNAL = r"red\.release\.gpu\.global\.add\.u32 [^;]*;"
RANK_SIGNAL = r"red\.release\.sys\.global\.add\.u32 [^;]*;"
COUNT_SIGNAL = r"red\.relaxed\.sys\.global\.add\.u64 [^;]*;"
FC2_SIGNAL = r"red\.release\.gpu\.global\.or\.b64 [^;]*;"
# In program order: BEFORE_PULL, a token's arrival, BEFORE_COMBINE.
GRID_SITES = {RankBarrier.BEFORE_PULL: 0, "token": 1, RankBarrier.BEFORE_COMBINE: 2}


@pytest.fixture
def patient(monkeypatch):
    """The simulator's own deadlock detection waits until the kernel's watchdog has had its chance."""
    monkeypatch.setattr(simulator, "IDLE_LIMIT", 10 * LIMIT_NS // 64)


def without(ptx: str, pattern: str, site: int) -> str:
    """The PTX with the site-th match blanked."""
    match = list(re.finditer(pattern, ptx))[site]
    return ptx[: match.start()] + ptx[match.end() :]


def layer_of(pattern: str | None = None, site: int = 0, watchdog_ns: int = LIMIT_NS, tokens: int = 8) -> tuple[Layer, object]:
    moe = problem(tokens)
    compiled = artifact(config(moe))
    if pattern is not None:
        compiled = replace(compiled, ptx=without(compiled.ptx, pattern, site))
    case = random_case(moe, (tokens, tokens - 3), 0)
    return Layer.of(compiled, case, race=False, watchdog_ns=watchdog_ns), case


def trip(layer: Layer, case: object) -> list[tuple[str, ...]]:
    """Fields of each record in the message."""
    with pytest.raises(WatchdogError) as caught:
        layer.launch(case)  # type: ignore[arg-type]
    records = MESSAGE.findall(str(caught.value))
    assert records, str(caught.value)
    return records


def test_honest_waits_stay_within_the_limit():
    layer, case = layer_of()
    layer.check(case)


def test_rank_signal_blocked(patient):
    """No rank says that it has arrived: whoever waits reports the barrier, how many ranks it expects and that it saw none."""
    layer, case = layer_of(RANK_SIGNAL)
    for rank, sm, wait, what, detail, expected, seen in trip(layer, case):
        assert (wait, what, detail, expected, seen) == (Wait.RANK.name, "rank barrier", "BEFORE_COMBINE", "0x2", "0x0")
        assert int(rank) < 2 and int(sm) < 4


@pytest.mark.parametrize("barrier", RankBarrier, ids=lambda b: b.name)
def test_grid_arrivals_blocked(barrier, patient):
    """CTAs never arrive: SM 0 waits for them, all others for what SM 0 then tells, which is the counts or the ranks' arrival."""
    layer, case = layer_of(GRID_SIGNAL, GRID_SITES[barrier], tokens=MANY if barrier == RankBarrier.BEFORE_PULL else 8)
    others = {RankBarrier.BEFORE_PULL: Wait.COUNTS, RankBarrier.BEFORE_COMBINE: Wait.RANK}[barrier]
    for _, sm, wait, _, detail, expected, seen in trip(layer, case):
        if wait == Wait.GRID.name:
            assert (sm, detail, expected, seen) == ("0", barrier.name, "0x4", "0x0")
        else:
            assert (wait, expected) == (others.name, "0x2")


def test_counts_blocked(patient):
    layer, case = layer_of(COUNT_SIGNAL)
    for _, _, wait, what, detail, expected, _ in trip(layer, case):
        assert (wait, what, expected) == (Wait.COUNTS.name, "local expert", "0x2")
        assert int(detail) < 4


def test_token_arrival_blocked(patient):
    """Tokens lie in the pool and nobody says so."""
    layer, case = layer_of(GRID_SIGNAL, GRID_SITES["token"])
    for _, _, wait, what, _, expected, seen in trip(layer, case):
        assert (wait, what, seen) == (Wait.FC1_ARRIVAL.name, "pool block", "0x0")
        assert 0 < int(expected, 16) <= 13


def test_fc1_output_blocked(patient):
    """Linear1 is done and nobody says so: the mask expects one bit per 64 channels."""
    layer, case = layer_of(FC2_SIGNAL)
    for _, _, wait, what, _, expected, seen in trip(layer, case):
        assert (wait, what, expected, seen) == (Wait.FC2_ARRIVAL.name, "pool block", "0x3", "0x0")


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_peer(missing, patient):
    """Only one of two ranks is launched: it names itself, and the counts that the other never sent."""
    layer, case = layer_of()
    run = layer.moe.simulator.run
    layer.moe.simulator.run = lambda launches: run([one for one in launches if one.rank != missing])  # type: ignore[method-assign]
    for rank, _, wait, _, detail, expected, seen in trip(layer, case):
        assert int(rank) == 1 - missing
        assert wait == Wait.COUNTS.name and 0 <= int(detail) < 4 and (expected, seen) == ("0x2", "0x1")


def test_without_a_limit_the_simulator_reports_a_deadlock():
    """The limit is an argument: a long one leaves it to the simulator, which lists every warp."""
    layer, case = layer_of(RANK_SIGNAL, 0, watchdog_ns=10**12)
    with pytest.raises(Deadlock, match="PTX line"):
        layer.launch(case)  # type: ignore[arg-type]


def test_describe_names_every_wait():
    for wait in Wait:
        text = WAITS.describe([int(wait), 3, 17, 1, 9, 1, 8, 2])
        assert text is not None and MESSAGE.match(text)
        assert f": wait {wait.name} (" in text and text.startswith("rank 3, SM 17, ") and "expected 0x100000009, saw 0x2" in text
    counts, barrier = (WAITS.describe([int(wait), 3, 17, 1, 4, 0, 8, 2]) for wait in (Wait.COUNTS, Wait.RANK))
    assert counts == "rank 3, SM 17, dispatch: wait COUNTS (local expert 1) exceeded its limit: expected 0x4, saw 0x2 ranks"
    assert barrier is not None and barrier.startswith("rank 3, SM 17, combine: wait RANK (rank barrier BEFORE_COMBINE)")
    assert WAITS.describe([0] * (RECORD.size // 4)) is None


def test_a_record_of_two_waits_is_described_all_the_same():
    """Waits that give up at once write one record: a barrier's may have another's detail."""
    text = WAITS.describe([int(Wait.GRID), 3, 17, 47, 9, 1, 8, 2])
    assert text is not None and text.startswith("rank 3, SM 17, dispatch or combine: wait GRID (rank barrier 47) exceeded its limit")


@pytest.mark.parametrize(
    ("wait", "detail", "said"),
    [
        (EpWait.RANK, EpBarrier.SPLITS, "routing tables: wait RANK (rank barrier SPLITS)"),
        (EpWait.GRID, EpBarrier.INPUTS, "dispatch: wait GRID (rank barrier INPUTS)"),
        (EpWait.RANK, EpBarrier.RESULTS, "combine: wait RANK (rank barrier RESULTS)"),
        (EpWait.RANK, EpBarrier.READ, "end of dispatch or combine: wait RANK (rank barrier READ)"),
        (EpWait.ROWS, 3, "dispatch: wait ROWS (rows of block or expert 3)"),
        (EpWait.STORED, 3, "dispatch: wait STORED (row 3)"),
        (EpWait.TILES, 3, "combine: wait TILES (tiles of part 3)"),
        (EpWait.RANK, 47, "routing tables, dispatch or combine: wait RANK (rank barrier 47)"),
    ],
)
def test_halves_name_the_phase(wait: EpWait, detail: int, said: str) -> None:
    assert EP_WAITS.describe([0] * 8) is None
    text = EP_WAITS.describe([wait, 3, 17, detail, 4, 0, 2, 0])
    assert text == f"rank 3, SM 17, {said} exceeded its limit: expected 0x4, saw 0x2"
