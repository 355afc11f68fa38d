"""The order of blocks on a ring, and a model of launches on it: every block once, rows used again only when they are free, never stuck."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_model import Launch, Overwritten, RingPlan, Stuck, sequence

from drawn_routings import token_counts
from megamoe_dsl import Target, choose
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.layouts.symmetric import is_ring, pool_tokens, whole_pool
from megamoe_dsl.kernels.moe.sm90.choose import choose_pool_rows, given_pool_rows
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.schedule.fused_moe import FC1, FC2, FusedMoeOrder, HostTable, RingOrder
from megamoe_dsl.schedule.scheduler import Scheduler


@st.composite
def launches(draw):
    """(plan, tokens per expert).  Shrinks to one expert without tokens, and a ring of one block."""
    experts = draw(st.integers(1, 5))
    ring = draw(st.integers(1, 9))
    plan = RingPlan(
        experts,
        ring,
        window=draw(st.integers(1, ring)),
        lookahead=draw(st.integers(1, experts)),
        group_m=draw(st.integers(1, 4)),
        fc1_n_blocks=draw(st.sampled_from((1, 2, 3))),
        fc2_n_blocks=draw(st.sampled_from((1, 2, 3))),
        num_clusters=draw(st.integers(1, 5)),
    )
    one_for_all = draw(st.booleans())
    counts = draw(token_counts(experts, plan.block_m, max_blocks=4))
    return plan, [sum(counts), *[0] * (experts - 1)] if one_for_all else counts


@settings(max_examples=60)
@given(launches(), st.integers(1, 6), st.integers(0, 9))
def test_a_launch_ends_and_no_rows_are_taken_too_early(launch, warps, seed):
    plan, counts = launch
    Launch(plan, counts, sequence(plan, counts), warps).run(seed)


@settings(max_examples=60)
@given(launches())
def test_every_block_once_and_in_an_order_without_deadlock(launch):
    plan, counts = launch
    blocks, table = sequence(plan, counts), HostTable.of(counts, plan.block_m)
    number = {(b.phase, b.pool_block, b.n_block): i for i, b in enumerate(blocks)}
    places = range(table.first_block(plan.experts))
    n_blocks = (plan.fc1_n_blocks, plan.fc2_n_blocks)
    assert len(number) == len(blocks) and set(number) == {(f, p, n) for f in (FC1, FC2) for p in places for n in range(n_blocks[f])}
    last = [[max(number[f, p, n] for n in range(n_blocks[f])) for p in places] for f in (FC1, FC2)]
    first = [[min(number[f, p, n] for n in range(n_blocks[f])) for p in places] for f in (FC1, FC2)]
    for place in places:
        assert last[FC1][place] < first[FC2][place]
        assert place < plan.ring_blocks or last[FC2][place - plan.ring_blocks] < first[FC1][place]
    for b in blocks:
        assert b.pool_block == table.first_block(b.expert) + b.m_block
        assert b.valid_m == min(plan.block_m, counts[b.expert] - b.m_block * plan.block_m) > 0


@settings(max_examples=80)
@given(launches())
def test_where_all_fits_the_order_is_that_of_a_whole_pool(launch):
    plan, counts = launch
    blocks = HostTable.of(counts, plan.block_m).first_block(plan.experts)
    most = max(-(-n // plan.block_m) for n in counts)
    plan = replace(plan, ring_blocks=max(blocks, 1), window=max(most, 1), group_m=max(most, 1))  # bands are whole experts
    assert sequence(plan, counts) == sequence(plan, counts, FusedMoeOrder)


@settings(max_examples=50)
@given(launches())
def test_past_the_end_there_is_no_block(launch):
    plan, counts = launch
    position = Scheduler.start(RingOrder(plan, HostTable.of(counts, plan.block_m)), len(sequence(plan, counts)) + 7, 1).advance_to_valid()
    assert not position.valid() and position.block().valid_m <= 0 and position.block().expert == plan.experts


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 12), st.data())
def test_a_pair_gets_blocks_of_one_phase_with_common_weights_or_tokens(local, ring, data):
    problem = Problem(512, 512, local, 1, max_tokens_per_rank=8192, recipe="fp8xfp8")
    config = Sm90Config(problem, 128, data.draw(st.integers(1, local)), 4, 2, cluster=2, pool_rows=128 * ring)
    blocks = sequence(config, data.draw(token_counts(local, 128, max_blocks=12)))
    for a, b in zip(blocks[::2], blocks[1::2], strict=True):
        assert (a.phase, a.expert) == (b.phase, b.expert) and (a.m_block == b.m_block or a.n_block == b.n_block)


@settings(max_examples=60)
@given(st.integers(1, 8), st.sampled_from((8, 16, 32, 128)), st.integers(1, 40))
def test_a_ring_has_as_many_blocks_as_the_pool_has_rows_for(local, block_m, granules):
    problem = Problem(512, 256, local, 1, max_tokens_per_rank=2048, recipe="fp8xfp8")
    config = Sm90Config(problem, block_m, 1, 4, pool_rows=128 * granules)
    most = max(sum(-(-n // block_m) for n in counts) for counts in ([2048 - local + 1, *[1] * (local - 1)], [2048]))
    assert config.ring_blocks == (128 * granules // block_m if 128 * granules // block_m < most else 0)
    rows = [config.first_row(place) for place in range(most)]
    assert max(rows) + block_m <= pool_tokens(problem, config.pool_rows)
    assert all(rows[p] == rows[p - config.ring_blocks] for p in range(config.ring_blocks, most) if config.ring_blocks)
    assert len(set(rows)) == (config.ring_blocks or most)


@pytest.mark.parametrize("preset", ["flash", "pro"])
@pytest.mark.parametrize("tokens", [1, 8, 64, 512, 2048, 8192])
def test_the_chosen_ring_holds_what_uniform_routing_fills_or_60_blocks(preset, tokens):
    problem = PRESETS[preset].problem(tokens, recipe="fp8xfp8")
    ring = choose_pool_rows(problem)
    config = choose(problem, Target.typical("sm_90a"), tokens, pool_rows=ring)
    each = problem.expected_tokens_per_expert(tokens)
    filled = problem.experts_per_rank * ceil(each / config.block_m)
    assert ring % 128 == 0 and ring // config.block_m >= min(filled, 60)
    assert pool_tokens(problem, ring) <= min(max(60 * 128, filled * config.block_m * 2), whole_pool(problem))
    assert [given_pool_rows(problem, rows) for rows in (None, 0, 256)] == [None, ring, 256]


@pytest.mark.parametrize("rows", [0, -128, 100, 129, 1.5, "128", True])
def test_pool_rows_are_refused_with_what_is_allowed(rows):
    with pytest.raises(ConfigError, match=r"pool_rows = .*: must be None or a multiple of 128"):
        Sm90Config(Problem(512, 256, 4, 1, recipe="fp8xfp8"), 8, 1, 4, pool_rows=rows)


def test_a_problem_has_no_pool_rows():
    with pytest.raises(ProblemError, match=r"pool_rows = 128: must be given to MegaMoE\(\.\.\., pool_rows=N\) or choose"):
        Problem(512, 256, 4, 1, pool_rows=128)


def test_no_ring_on_blackwell():
    problem = Problem(512, 256, 4, 1)
    with pytest.raises(ConfigError, match=r"pool_rows = 128: must be None, or at least 1152, on sm_100a"):
        choose(problem, Target.typical("sm_100a"), 128, pool_rows=128)
    assert not is_ring(problem, 1152) and choose(problem, Target.typical("sm_100a"), 128, pool_rows=1152)


def test_worked_order():
    """Letters are token blocks of two experts, of three and two blocks, capital ones their Linear2; a ring of four, bands of two."""
    plan = RingPlan(2, 4, window=3, lookahead=2, group_m=2, fc1_n_blocks=1, fc2_n_blocks=1)
    assert "".join(("abcde", "ABCDE")[b.phase][b.pool_block] for b in sequence(plan, [12, 8])) == "abcABdeCDE"
    assert "".join(("abcde", "ABCDE")[b.phase][b.pool_block] for b in sequence(replace(plan, window=1, ring_blocks=1), [12, 8])) == (
        "aAbBcCdDeE"
    )


# --- what must not pass
COUNTS = [40, 13, 0, 20]
PLAN = RingPlan(4, 6, window=5, lookahead=2, num_clusters=3)


class TooFar(RingOrder):
    """Linear1 goes further than the ring has rows."""

    def sizes(self, part):
        return RingOrder(replace(self.config, window=self.config.ring_blocks + 5), self.table).sizes(part)


def test_a_window_larger_than_the_ring_is_stuck():
    with pytest.raises(Stuck):
        Launch(PLAN, COUNTS, sequence(PLAN, COUNTS, TooFar), 4).run(0)


def test_the_order_of_a_whole_pool_is_stuck_on_a_ring():
    with pytest.raises(Stuck):
        Launch(PLAN, COUNTS, sequence(PLAN, COUNTS, FusedMoeOrder), 4).run(0)


def test_rows_freed_by_one_tile_of_several_are_overwritten():
    early = Launch(PLAN, COUNTS, sequence(PLAN, COUNTS), 4, freed=lambda plan, done: done > 0)
    with pytest.raises(Overwritten):
        early.run(0)
