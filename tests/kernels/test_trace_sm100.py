"""A traced SM100 kernel computes the same, and its stamps tell what every warp of a CTA pair did."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from mega_moe_runs import Layer, config, problem

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.inspect.spans import Span, spans_of
from megamoe_dsl.layouts.records import Activity, Role
from megamoe_dsl.schedule.fused_moe import FusedMoeOrder

WARPS = {Role.DISPATCH: 4, Role.TOKEN_LOADER: 1, Role.WEIGHT_LOADER: 1, Role.EPILOGUE: 8}
"""Of a CTA; the MMA warp is one of a pair."""


@pytest.fixture(scope="module")
def traced() -> tuple[Layer, Case]:
    case = random_case(problem(9), [9, 5], 1)
    layer = Layer.of(config(case.problem, num_sms=4, trace=True), case, race=False)
    layer.check(case)
    return layer, case


def test_every_tile_is_stamped_once_by_each_who_works_on_it(traced: tuple[Layer, Case]) -> None:
    layer, case = traced
    kernel, local = layer.moe.artifact.config, case.problem.experts_per_rank
    chosen = Counter(int(e) for idx in case.topk_idx for e in idx.flatten() if e >= 0)
    for rank, buffers in enumerate(layer.moe.ranks):
        spans = list(spans_of(buffers.trace))
        counts = [chosen[rank * local + i] for i in range(local)]
        blocks = [b for pair in range(kernel.num_clusters) for b in FusedMoeOrder.blocks(kernel, counts, pair)]
        tiles = Counter(2 * (b.pool_block * 256 + b.n_block) + b.phase for b in blocks)
        for role, activity, warps in (
            (Role.MMA, Activity.MULTIPLY, 1),
            (Role.TOKEN_LOADER, Activity.LOAD, 2),
            (Role.WEIGHT_LOADER, Activity.LOAD, 2),
            (Role.EPILOGUE, Activity.EPILOGUE, 8),  # four warps of each CTA
        ):
            stamped = Counter(one.detail for one in spans if (one.role, one.activity) == (role, activity))
            assert stamped == Counter({tile: warps * count for tile, count in tiles.items()}), role


def test_a_warps_time_has_no_gaps(traced: tuple[Layer, Case]) -> None:
    for buffers in traced[0].moe.ranks:
        warps: dict[tuple[int, int], list[Span]] = {}
        for span in spans_of(buffers.trace):
            warps.setdefault((span.sm, span.warp), []).append(span)
        assert Counter(one[0].role for one in warps.values()) == {role: 4 * count for role, count in WARPS.items()} | {Role.MMA: 2}
        for mine in warps.values():
            assert all(a.end == b.start for a, b in pairwise(mine)) and all(one.start <= one.end for one in mine)
            last = {Role.DISPATCH: Activity.CLEAN, Role.EPILOGUE: Activity.COMBINE}
            assert mine[-1].activity == last.get(mine[0].role, mine[-1].activity)
