"""Traced halves of a layer compute the same, and their stamps tell what every warp did: each tile and each task once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from ep_runs import check_combine, check_dispatch, problem, row_activations, simulated, small_config

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.inspect.spans import Span, spans_of
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, EpConfig
from megamoe_dsl.layouts.records import TILE_ACTIVITIES, Activity, Role, tile_detail
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from sweep import rarely

LOADS = {(Role.TOKEN_LOADER, Activity.WAIT_TOKENS): 1, (Role.TOKEN_LOADER, Activity.LOAD): 1, (Role.WEIGHT_LOADER, Activity.LOAD): 1}
MATH = {(Role.MATH, activity): 8 for activity in (Activity.WAIT_STAGE, Activity.MULTIPLY, Activity.EPILOGUE)}
OF_PAIRS = {
    **{of: 2 * warps for of, warps in LOADS.items()},
    **{(Role.MMA, activity): 1 for activity in (Activity.WAIT_STAGE, Activity.MULTIPLY)},
    **{(Role.EPILOGUE, activity): 16 for activity in (Activity.WAIT_STAGE, Activity.EPILOGUE)},
}
STAMPED = {"fp8xfp8": {**LOADS, **MATH}, "fp8xfp4": OF_PAIRS}
"""By recipe: warps that stamp a tile, of a CTA, or of a pair."""
MOE = problem(12, hidden=256, num_experts=4)


@pytest.fixture(scope="module", params=["fp8xfp8", rarely("fp8xfp4")])
def traced(request: pytest.FixtureRequest) -> tuple[SimulatedEp, Case]:
    """Dispatch twice on the same buffers, the second time on other data, and combine: stamps are the last launch's."""
    moe = replace(MOE, recipe=request.param)
    case = random_case(moe, (12, 5), 1, mask=0.1)
    ep = simulated(small_config(moe, task_tokens=4, trace=True), case, {"trace": True})
    check_dispatch(ep, replace(random_case(moe, (3, 12), 2), weights=case.weights))
    check_dispatch(ep, case)
    check_combine(ep, case, row_activations(ep, 3))
    return ep, case


def configs(ep: SimulatedEp) -> tuple[EpConfig, EpConfig]:
    """Of dispatch and of combine."""
    return ep.dispatch_kernel.config, ep.combine_kernel.config


def test_every_tile_is_stamped_once_by_all_warps_of_a_cta(traced: tuple[SimulatedEp, Case]) -> None:
    ep, _ = traced
    for buffers in ep.ranks:
        for phase, config in enumerate(configs(ep)):
            spans = list(spans_of(buffers.trace_of(config)))
            height = config.block_m
            blocks = [
                place.start // height + i for place in buffers.expert_slices() for i in range(-(-(place.stop - place.start) // height))
            ]
            tiles = Counter(tile_detail(block, n, phase) for block in blocks for n in range(config.gemm_problem.n // config.block_n))
            for of, warps in STAMPED[ep.problem.recipe].items():
                stamped = Counter(one.detail for one in spans if (one.role, one.activity) == of)
                assert stamped == dict.fromkeys(tiles, warps)


def test_every_task_is_one_warps(traced: tuple[SimulatedEp, Case]) -> None:
    """Those of dispatch are as many for each rank; those of combine are the rank's tokens."""
    ep, case = traced
    for rank, buffers in enumerate(ep.ranks):
        dispatch, combine = (list(spans_of(buffers.trace_of(config))) for config in configs(ep))
        pulls = [one.detail for one in dispatch if one.activity == Activity.PULL]
        most = int(buffers.view("recv_pairs").max())
        assert sorted(pulls) == list(range(-(-most // 4) * MOE.num_ranks))
        sums = [one.detail for one in combine if one.activity == Activity.COMBINE]
        assert sorted(sums) == list(range(-(-len(case.x[rank]) // 4)))


def test_a_warps_time_has_no_gaps(traced: tuple[SimulatedEp, Case]) -> None:
    ep, _ = traced
    for buffers in ep.ranks:
        for phase, (config, role) in enumerate(zip(configs(ep), (Role.DISPATCH, Role.COMBINE), strict=True)):
            warps: dict[tuple[int, int], list[Span]] = {}
            for span in spans_of(buffers.trace_of(config)):
                warps.setdefault((span.sm, span.warp), []).append(span)
                assert span.activity not in TILE_ACTIVITIES or span.detail & 1 == phase
            moving = {one: mine for one, mine in warps.items() if mine[0].role == role}
            assert len(moving) == 2 * 4 and all(mine[-1].activity == Activity.WAIT_RANKS for mine in moving.values())
            for mine in warps.values():
                assert all(a.end == b.start for a, b in pairwise(mine)) and all(one.start <= one.end for one in mine)


def test_what_is_no_choice_is_named() -> None:
    with pytest.raises(ConfigError, match=r"trace = 2: must be True or False"):
        DispatchGemmConfig(MOE, trace=2)  # type: ignore[arg-type]
