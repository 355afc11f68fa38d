"""Workspace, symmetric buffer and pool for random problems and routings."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import check_offsets, check_pool, check_region, check_views

from drawn_routings import routings, worst_routing
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM100
from megamoe_dsl.hardware.operand_tile import pool_sf_row
from megamoe_dsl.kernels.moe.layouts.smem_plan import RankBarrier
from megamoe_dsl.kernels.moe.layouts.symmetric import (
    CANDIDATE_BLOCK_M,
    POOL_ALIGNMENT,
    SMALLEST_TIER,
    padded_sf_rows,
    pool_tokens,
    symmetric_buffer,
    whole_pool,
    workspace,
)
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.layouts.region import BF16, E4M3, F32, I64, U8, U32, U64
from megamoe_dsl.problem import Problem
from megamoe_dsl.recipe import E4M3 as E4M3_NAME
from megamoe_dsl.schedule.fused_moe import HostTable
from megamoe_dsl.testing import problems

BLOCK_M = tuple(tier.block_m for tier in TIERS)


# --- regions
@settings(max_examples=80)
@given(problems())
def test_workspace_and_symmetric_buffer(problem):
    check_region(workspace(problem, SM100))
    buffer = symmetric_buffer(problem, SM100)
    check_region(buffer)
    check_views(buffer)
    for placement in workspace(problem, SM100):  # the workspace is the start of the symmetric buffer
        assert buffer[placement.field.name] == placement


@settings(max_examples=80)
@given(problems())
def test_fields_have_the_documented_shapes(problem):
    tokens, topk, hidden, intermediate = problem.max_tokens_per_rank, problem.topk, problem.hidden, problem.intermediate
    ranks, local, pool = problem.num_ranks, problem.experts_per_rank, pool_tokens(problem)
    buffer = symmetric_buffer(problem, SM100)
    sf_rows = padded_sf_rows(pool, problem.formats)
    expected = {
        "expert_send_count": ((problem.num_experts,), U32),
        "expert_recv_count": ((ranks, local), U64),
        "expert_recv_count_sum": ((local,), U64),
        "expert_counts_seen": ((local,), U64),
        "fc1_arrival_count": ((pool // 16,), U32),
        "fc2_arrival": ((pool // 16,), U64),
        "src_token_topk_idx": ((local, ranks, tokens), U32),
        "rank_signal": ((len(RankBarrier),), U32),
        "x": ((tokens, hidden), E4M3),
        "x_sf": ((tokens, hidden // 32), U8),
        "topk_idx": ((tokens, topk), I64),
        "topk_weights": ((tokens, topk), F32),
        "fc1_acts": ((pool, hidden), E4M3),
        "fc1_sf": ((hidden // 128, sf_rows), U32),
        "fc1_topk_weights": ((pool,), F32),
        "fc2_acts": ((pool, intermediate), E4M3),
        "fc2_sf": ((intermediate // 128, sf_rows), U32),
        "combine": ((topk, tokens, hidden), BF16),
    }
    assert {name: (buffer[name].field.shape, buffer[name].field.dtype) for name in expected} == expected
    for name in ("x", "fc1_acts", "fc1_sf", "fc2_acts", "fc2_sf", "combine"):  # TMA: base 128 bytes, row strides 16 bytes
        assert buffer[name].offset % 128 == 0 and buffer[name].field.strides[0] % 16 == 0
    assert buffer.alignment == 128


@settings(max_examples=60)
@given(problems())
def test_packed_activations_take_half_the_bytes(problem):
    """mxf4xmxf4: rows of tokens and pools; and blocks of 32 tokens at least, so fewer counters and half the scale words."""
    packed = replace(problem, recipe="mxf4xmxf4")
    new, old = symmetric_buffer(packed, SM100), symmetric_buffer(problem, SM100)
    check_region(new)
    check_views(new)
    for name in ("x", "fc1_acts", "fc2_acts"):
        rows, row_bytes = old[name].field.shape
        assert new[name].field.shape == (rows, row_bytes // 2) and new[name].field.dtype == U8
        assert new[name].offset % 128 == 0 and new[name].field.strides[0] % 16 == 0
    for name in ("fc1_sf", "fc2_sf"):
        words, sf_rows = old[name].field.shape
        assert new[name].field.shape == (words, sf_rows // 2)
    assert new["fc1_arrival_count"].field.shape == (pool_tokens(problem) // 32,)
    same = {placement.field.name for placement in old} - {
        "x",
        "fc1_acts",
        "fc2_acts",
        "fc1_sf",
        "fc2_sf",
        "fc1_arrival_count",
        "fc2_arrival",
    }
    assert all(new[name].field == old[name].field for name in same)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_element_of_a_small_buffer(ranks):
    problem = Problem(256, 128, ranks, 1, num_ranks=ranks, max_tokens_per_rank=1)
    buffer = symmetric_buffer(problem, SM100)
    for placement in buffer:
        if placement.field.num_bytes < 50_000:
            check_offsets(buffer, placement.field.name)


def test_one_buffer_per_problem():
    problem = Problem(256, 128, 4, 2)
    assert symmetric_buffer(problem, SM100) is symmetric_buffer(replace(problem), SM100)


# --- pool
@settings(max_examples=80)
@given(st.data())
def test_pool_holds_any_routing(data):
    problem = data.draw(problems(max_experts_per_rank=12, max_ranks=4, max_topk=8, max_tokens=8))
    routing = data.draw(routings(problem))
    for rank in range(problem.num_ranks):
        counts = routing.received(rank)
        for block_m in BLOCK_M:
            check_pool(problem, counts, block_m, pool_tokens(problem), HostTable.of(counts, block_m).first)


def crowded_counts(problem: Problem, block_m: int) -> list[int]:
    """The routing that wastes most: as many experts as possible one token past a whole block, all others with what is left over."""
    every, each = problem.num_ranks * problem.max_tokens_per_rank, problem.experts_per_rank
    left = every * problem.max_experts_per_token
    counts = [0] * each
    for expert in range(each):
        counts[expert] = min(1, left)
        left -= counts[expert]
    for expert in range(each):
        more = min(left, every - counts[expert]) // block_m * block_m
        counts[expert] += more
        left -= more
    for expert in range(each):
        more = min(left, every - counts[expert])
        counts[expert] += more
        left -= more
    assert left == 0
    return counts


@settings(max_examples=80)
@given(problems(max_hidden=256, max_intermediate=128, max_tokens=300), st.sampled_from(BLOCK_M))
def test_pool_holds_the_most_wasteful_routing(problem, block_m):
    counts = crowded_counts(problem, block_m)
    check_pool(problem, counts, block_m, pool_tokens(problem), HostTable.of(counts, block_m).first)
    assert HostTable.of(counts, block_m).first[-1] <= workspace(problem, SM100)["fc1_arrival_count"].field.shape[0]


@settings(max_examples=50)
@given(problems(max_hidden=256, max_intermediate=128, max_experts_per_rank=8, max_ranks=4, max_topk=8, max_tokens=20), st.data())
def test_pool_holds_every_token_sent_to_one_rank(problem, data):
    rank = data.draw(st.integers(0, problem.num_ranks - 1))
    counts = worst_routing(problem, rank).received(rank)
    assert sum(counts) == problem.num_ranks * problem.max_tokens_per_rank * problem.max_experts_per_token
    for block_m in BLOCK_M:
        check_pool(problem, counts, block_m, pool_tokens(problem), HostTable.of(counts, block_m).first)


@settings(max_examples=80)
@given(problems(max_hidden=256, max_intermediate=128))
def test_pool_is_a_whole_number_of_blocks_for_every_tier(problem):
    capacity = pool_tokens(problem)
    assert capacity % POOL_ALIGNMENT == 0 == capacity % 384
    assert all(capacity % block_m == 0 for block_m in (*CANDIDATE_BLOCK_M, *BLOCK_M))
    assert workspace(problem, SM100)["fc1_arrival_count"].field.shape == (capacity // SMALLEST_TIER[E4M3_NAME],)
    assert min(BLOCK_M) == SMALLEST_TIER[E4M3_NAME]


def test_pool_formula():
    """MEGAMOE_FACTS: P = align(R * T * min(K, El) + El * 191, 384)."""
    for ranks, tokens, topk, local in [(8, 256, 8, 32), (1, 1, 1, 1), (8, 8192, 6, 48), (2, 100, 8, 4)]:
        rows = ranks * tokens * min(topk, local) + local * 191
        capacity = whole_pool(Problem(256, 128, local * ranks, min(topk, local * ranks), ranks, tokens))
        assert capacity == (rows + 383) // 384 * 384


@settings(max_examples=60)
@given(problems(max_hidden=256, max_intermediate=128, max_tokens=64, max_experts_per_rank=8, max_ranks=4), st.sampled_from(BLOCK_M))
def test_scale_words_of_the_pool_are_distinct_and_fit(problem, block_m):
    config = choose(problem, Target.typical("sm_100a"), 1, block_m=block_m)
    capacity = pool_tokens(problem)
    counts = crowded_counts(problem, block_m)
    first = HostTable.of(counts, block_m).first
    words = [
        pool_sf_row(first[expert] + row // block_m, row % block_m, config.sf_block_m)
        for expert, tokens in enumerate(counts)
        for row in range(tokens)
    ]
    assert len(set(words)) == len(words)
    sf_rows = padded_sf_rows(capacity, problem.formats)
    assert max(words) < sf_rows
    # The box that the token loader fetches for the last block the pool can have.
    assert (capacity // block_m) * config.sf_block_m <= sf_rows


@settings(max_examples=60)
@given(st.data())
def test_source_slots_hold_any_routing(data):
    """A token names an expert once, so T slots per (expert, source rank) suffice, and token * topk + slot fits 32 bits."""
    problem = data.draw(problems(max_experts_per_rank=6, max_ranks=4, max_topk=8, max_tokens=8))
    routing = data.draw(st.one_of(routings(problem), st.just(worst_routing(problem))))
    region, tickets, used = workspace(problem, SM100), {}, set()
    for rank, token, slot, expert in routing.entries():
        ticket = tickets[rank, expert] = tickets.get((rank, expert), -1) + 1
        owner, local = divmod(expert, problem.experts_per_rank)
        place = owner, region.offset("src_token_topk_idx", local, rank, ticket)
        assert place not in used and 0 <= token * problem.topk + slot < 1 << 32
        used.add(place)
