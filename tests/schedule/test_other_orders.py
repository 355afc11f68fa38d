"""The orders of dense and grouped GEMMs on the host: every block once, bands of rows, neighbors that share a row or a column."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_properties import GemmPlan

from megamoe_dsl.schedule.fused_moe import HostTable
from megamoe_dsl.schedule.gemm import DenseOrder, GemmBlock, GroupedOrder
from megamoe_dsl.schedule.scheduler import Scheduler

PLANS = st.builds(GemmPlan, st.sampled_from((8, 64, 96, 128)), st.integers(1, 9), st.sampled_from((1, 2, 3, 8, 16)))


def nested_loops(plan: GemmPlan, rows: int) -> list[tuple[int, int, int]]:
    """(row block, column block, rows in it): band by band, column by column, rows there and back."""
    m_blocks, found = -(-rows // plan.block_m), []
    for first in range(0, m_blocks, plan.group_m):
        band = range(first, min(first + plan.group_m, m_blocks))
        for n_block in range(plan.n_blocks):
            for m_block in band if n_block % 2 == 0 else reversed(band):
                found.append((m_block, n_block, min(rows - m_block * plan.block_m, plan.block_m)))
    return found


def walk_in_turns(order: DenseOrder | GroupedOrder, clusters: int) -> list[GemmBlock]:
    """The sequence that `clusters` clusters work on, each of which takes every `clusters`-th block."""
    lists = [list(Scheduler.blocks(order, cluster, clusters)) for cluster in range(clusters)]
    return [lists[number % clusters][number // clusters] for number in range(sum(map(len, lists)))]


@settings(max_examples=80)
@given(PLANS, st.integers(0, 4000), st.integers(1, 9))
def test_dense_order_equals_nested_loops(plan: GemmPlan, rows: int, clusters: int) -> None:
    blocks = walk_in_turns(DenseOrder(plan, rows), clusters)
    assert [(b.m_block, b.n_block, b.valid_m) for b in blocks] == nested_loops(plan, rows)


@settings(max_examples=80)
@given(PLANS, st.integers(1, 4000))
def test_dense_blocks_cover_the_result_once_and_neighbors_share_an_operand(plan: GemmPlan, rows: int) -> None:
    blocks = list(Scheduler.blocks(DenseOrder(plan, rows)))
    m_blocks = -(-rows // plan.block_m)
    assert Counter((b.m_block, b.n_block) for b in blocks) == Counter((m, n) for m in range(m_blocks) for n in range(plan.n_blocks))
    assert sum(b.valid_m for b in blocks) == rows * plan.n_blocks
    for a, b in pairwise(blocks):
        if a.m_block // plan.group_m == b.m_block // plan.group_m:
            assert abs(a.m_block - b.m_block) + abs(a.n_block - b.n_block) == 1


@settings(max_examples=80)
@given(PLANS, st.lists(st.integers(0, 500), min_size=1, max_size=12), st.integers(1, 9))
def test_grouped_order_is_a_dense_one_per_expert(plan: GemmPlan, counts: list[int], clusters: int) -> None:
    plan = GemmPlan(plan.block_m, plan.n_blocks, plan.group_m, len(counts))
    expected = [GemmBlock(expert, m, n, valid) for expert, rows in enumerate(counts) for m, n, valid in nested_loops(plan, rows)]
    assert walk_in_turns(GroupedOrder(plan, HostTable.of(counts, plan.block_m)), clusters) == expected


@pytest.mark.parametrize("clusters", [1, 3, 200])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_no_block_has_rows_past_the_end(rows: int, clusters: int) -> None:
    """What a scheduler warp publishes to say that nothing is left is the block there."""
    plan = GemmPlan(64, 3, 2, num_experts=2)
    for order in (DenseOrder(plan, rows), GroupedOrder(plan, HostTable.of([rows, 0], 64))):
        for cluster in range(clusters):
            position = Scheduler.start(order, cluster, clusters).advance_to_valid()
            while position.valid():
                assert position.block().valid_m > 0
                position = position.skip().advance_to_valid()
            assert position.block().valid_m <= 0


def test_worked_dense_order() -> None:
    """Three row blocks in bands of two, two columns."""
    blocks = list(Scheduler.blocks(DenseOrder(GemmPlan(128, 2, 2), 300)))
    assert [(b.m_block, b.n_block) for b in blocks] == [(0, 0), (1, 0), (1, 1), (0, 1), (2, 0), (2, 1)]
    assert blocks[4:] == [GemmBlock(0, 2, 0, 44), GemmBlock(0, 2, 1, 44)]
