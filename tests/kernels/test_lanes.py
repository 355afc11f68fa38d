"""The kernels with all that the simulator can ask of lanes: another leader, late loads, lanes that need not go together."""

from __future__ import annotations

import mega_moe_runs
import pytest
import sm90_runs
from mega_moe_runs import Layer, artifact

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.sim import Assumptions, Finding

TOKENS = (24, 5)


def layer_of(arch: str, assumptions: Assumptions) -> tuple[Layer, Case]:
    """A layer of one architecture on a simulator that takes this for granted, and its data. It has more K blocks than stages."""
    runs = sm90_runs if arch == "sm90" else mega_moe_runs
    moe = runs.problem(max(TOKENS), num_experts=4, hidden=512)
    case = sm90_runs.hopper_case(moe, TOKENS, 0) if arch == "sm90" else random_case(moe, TOKENS, 0)
    layer = Layer.of(artifact(runs.config(moe, num_sms=2, num_stages=2)), case)
    layer.moe.simulator.assumptions = assumptions
    return layer, case


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
