"""The kernels with all that the simulator can ask of lanes: another leader, late loads, lanes that need not go together, no warp barrier.

`make test` runs a sample; one to eight ranks on both architectures, and the SM90 kernels without each of their warp barriers, with

    python -m pytest -m faults -k "ranks or warp_barrier" tests/kernels/test_lanes.py
"""

from __future__ import annotations

from itertools import pairwise

import mega_moe_runs
import pytest
import sm90_runs
from mega_moe_runs import Layer
from test_sm90_faults import ORDERS, PAIRS
from warp_barriers import EXPLAINED, WarpBarrier, how_noticed_without, warp_barriers

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.sim import Assumptions, Finding
from ptx_of import artifact
from sweep import sample

TOKENS = (24, 5)


def layer_of(arch: str, assumptions: Assumptions) -> tuple[Layer, Case]:
    """A layer of one architecture on a simulator that takes this for granted, and its data. It has more K blocks than stages."""
    runs = sm90_runs if arch == "sm90" else mega_moe_runs
    moe = runs.problem(max(TOKENS), num_experts=4, hidden=512)
    case = sm90_runs.hopper_case(moe, TOKENS, 0) if arch == "sm90" else random_case(moe, TOKENS, 0)
    layer = Layer.of(artifact(runs.config(moe, num_sms=2, num_stages=2)), case)
    layer.moe.simulator.assumptions = assumptions
    return layer, case


@sample("another leader-sm90", "late loads-sm100")
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("assumptions", [Assumptions(leader=9), Assumptions(late_loads=True)], ids=["another leader", "late loads"])
def test_a_launch_is_right_with(arch: str, assumptions: Assumptions) -> None:
    layer, case = layer_of(arch, assumptions)
    layer.check(case)


def apart(arch: str) -> list[Finding]:
    """What is found when lanes need not go together."""
    layer, case = layer_of(arch, Assumptions(lockstep=False))
    ranks, report = layer.launch(case)
    assert [one.violations for one in ranks] == [0] * len(ranks)
    return report.findings


def test_sm100_needs_no_lanes_that_go_together() -> None:
    assert [str(finding) for finding in apart("sm100")] == []


def test_sm90_gives_stages_back_for_lanes_that_go_together() -> None:
    """Lanes of a math warp use the scales that they have read, then one arrives for all: right where they execute that together.

    That is all: a scale of a stage, and the loader that fills the stage again.
    """
    found = {(one.kind, " smem+" in one.where, one.second.split(" mbarrier")[0]) for one in apart("sm90")}
    assert found == {("WAR race", True, "TMA load for")}


@pytest.mark.sweep
def test_decoded_stages_are_given_back_for_such_lanes_too() -> None:
    """What other warps decode into comes with scales that they store: compute-sanitizer follows such stores and reports the same
    (docs/explanation/proof.md)."""
    moe = sm90_runs.problem(9, num_ranks=1, num_experts=2, hidden=512, recipe="fp8xmxfp4")
    case = sm90_runs.hopper_case(moe, (9,), 0)
    layer = Layer.of(artifact(sm90_runs.config(moe, block_m=128, num_sms=2)), case)
    layer.moe.simulator.assumptions = Assumptions(lockstep=False)
    ranks, report = layer.launch(case)
    assert [one.violations for one in ranks] == [0]
    found = {(one.kind, " smem+" in one.where, one.second.split(" mbarrier")[0]) for one in report.findings}
    assert found == {("WAR race", True, "TMA load for"), ("WAR race", True, "rank 0 CTA (0,0,0) warp 12 lane 0")}


def by_function(order: str) -> list[WarpBarrier]:
    """The barriers that `EXPLAINED` has a reason for."""
    return [one for one in warp_barriers(order) if one.function in EXPLAINED]


def last_of_linear2(order: str) -> list[WarpBarrier]:
    """The barriers after the last pass of a Linear2 tile: that of `next_tile` follows before the buffer is written again, so that one of
    the two must stay."""
    found = warp_barriers(order)
    after_pass = max((one.line for one in found if one.function == "finish_fc2"), default=0)
    passes = [(one, following) for one, following in pairwise(found) if (one.function, one.line) == ("finish_fc2", after_pass)]
    return [one for one, following in passes if following.function != "finish_fc2"]


@sample("columns")
@pytest.mark.parametrize("order", [*ORDERS, pytest.param(PAIRS, marks=pytest.mark.faults)])
def test_warp_barriers_are_known(order: str) -> None:
    """Every explanation has its barriers, and what it leaves are those that one lane's arrival or store comes after."""
    left = {one.function for one in warp_barriers(order)} - set(EXPLAINED)
    assert left == {"pull_token", "finish_fc1", "store_sum"} | (set() if order == "columns" else {"finish_fc2"})
    assert {one.function for one in warp_barriers(order)} >= set(EXPLAINED)


@pytest.mark.sweep
def test_warp_barriers_that_are_explained_show_nowhere() -> None:
    """Not even when all of them are dropped at once."""
    assert how_noticed_without("columns", by_function("columns")) is None


@sample("store_sum")
@pytest.mark.parametrize("function", ["pull_token", "finish_fc1", "store_sum"])
def test_a_dropped_warp_barrier_is_noticed(function: str) -> None:
    last = [one for one in warp_barriers("columns") if one.function == function][-1]
    assert (how_noticed_without("columns", [last]) or "").startswith("race")


@pytest.mark.faults
@pytest.mark.parametrize("order", ORDERS)
def test_every_other_warp_barrier_is_noticed(order: str) -> None:
    silent = by_function(order) + last_of_linear2(order)
    wanted = [one for one in warp_barriers(order) if one not in silent]
    assert [one for one in wanted if not (how_noticed_without(order, [one]) or "").startswith("race")] == []


@pytest.mark.faults
def test_one_warp_barrier_between_tiles_must_stay() -> None:
    both = by_function(PAIRS), last_of_linear2(PAIRS)
    assert [how_noticed_without(PAIRS, one) for one in both] == [None, None]
    assert (how_noticed_without(PAIRS, [*both[0], *both[1]]) or "").startswith("race")


@pytest.mark.faults
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize(("arch", "block_m"), [("sm90", 8), ("sm90", 128), ("sm100", 16)])
def test_no_finding_on_one_to_eight_ranks(arch: str, block_m: int, ranks: int) -> None:
    """A launch with another leader, and one with late loads, on the same buffers: bits of the reference, no finding."""
    runs = sm90_runs if arch == "sm90" else mega_moe_runs
    moe = runs.problem(9, num_experts=2 * ranks, num_ranks=ranks)
    kernel = artifact(runs.config(moe, num_sms=2, block_m=block_m))
    layer: Layer | None = None
    for number, assumptions in enumerate((Assumptions(leader=9), Assumptions(late_loads=True))):
        tokens = [(5 * rank + 7 * number + 3) % 10 for rank in range(ranks)]
        case = (sm90_runs.hopper_case if arch == "sm90" else random_case)(moe, tokens, number, mask=0.1)
        layer = layer or Layer.of(kernel, case)
        layer.moe.simulator.assumptions = assumptions
        layer.check(case, number)
