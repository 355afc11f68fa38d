"""The block scheduler on the host: random counts, lookaheads and grids against nested loops; broken orders are caught."""

import dataclasses
from itertools import groupby, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_properties import (
    by_cluster,
    check_balance,
    check_complete,
    check_dependencies,
    check_fetches,
    check_mixture,
    check_neighbors,
    check_order,
    check_places,
    check_schedule,
    interleaved,
    oracle,
)

from drawn_routings import token_counts
from megamoe_dsl import Target, choose
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import FC1, FC2, Block, FusedMoeOrder, HostTable
from megamoe_dsl.schedule.scheduler import Scheduler
from megamoe_dsl.testing import configs_sm90, configs_sm100, problems

SMALL = problems(max_hidden=1024, max_intermediate=512, max_experts_per_rank=12, max_ranks=2, max_tokens=16)


@st.composite
def launches(draw, max_blocks=12, architectures=(configs_sm100, configs_sm90)):
    """(config of either architecture, tokens per local expert).  Shrinks to SM100, no tokens, one cluster."""
    config = draw(st.one_of(*(kind(SMALL, max_sms=40) for kind in architectures)))
    return config, draw(token_counts(config.problem.experts_per_rank, config.block_m, max_blocks=max_blocks))


@st.composite
def launches_of_pairs(draw):
    """(SM90 config of pairs of CTAs, tokens per local expert), with so many blocks that both phases alternate."""
    experts = draw(st.integers(1, 5))
    hidden, intermediate = (512 * draw(st.integers(1, 4)) for _ in range(2))
    problem = Problem(hidden, intermediate, experts, 1, max_tokens_per_rank=8192, recipe="fp8xfp8")
    config = Sm90Config(problem, 128, draw(st.integers(1, experts)), 2 * draw(st.integers(1, 20)), 2, cluster=2)
    return config, draw(token_counts(experts, 128, max_blocks=40))


def config_of(experts, lookahead, *, num_sms=4, hidden=512, intermediate=256, block_m=16):
    problem = Problem(hidden, intermediate, experts, 1, max_tokens_per_rank=64)
    return Sm100Config(problem, block_m, lookahead, num_sms, 2, store_block_m=16, epilogue_warpgroups=2)


@settings(max_examples=80)
@given(launches())
def test_schedule_equals_nested_loops(launch):
    check_schedule(FusedMoeOrder.blocks, *launch)


@settings(max_examples=60)
@given(launches_of_pairs())
def test_schedule_of_pairs_equals_nested_loops(launch):
    check_schedule(FusedMoeOrder.blocks, *launch)


@settings(max_examples=80)
@given(launches(), st.integers(1, 3))
def test_warpgroups_deal_a_clusters_blocks_among_themselves(launch, every):
    """A walk that starts `g` fetches later and takes every `every`-th block sees exactly its share of the cluster's blocks."""
    config, counts = launch
    order, at_a_time = FusedMoeOrder(config, HostTable.of(counts, config.block_m)), config.blocks_per_fetch
    for cluster in (0, config.num_clusters - 1):
        blocks = list(FusedMoeOrder.blocks(config, counts, cluster))
        for group in range(every):
            first = (cluster + group * config.num_clusters) * at_a_time
            mine = list(Scheduler.blocks(order, first, every * config.num_clusters * at_a_time))
            assert mine == blocks[::at_a_time][group::every]


@settings(max_examples=80)
@given(launches(architectures=(configs_sm100,)))
def test_mma_covers_the_valid_tokens(launch):
    config, counts = launch
    for block in FusedMoeOrder.blocks(config, counts, 0):
        assert block.valid_m <= block.mma_n < block.valid_m + 16
        assert block.mma_n % 16 == 0 and 16 <= block.mma_n <= config.block_m


@settings(max_examples=80)
@given(launches())
def test_valid_positions_are_fixed_points(launch):
    config, counts = launch
    order = FusedMoeOrder(config, HostTable.of(counts, config.block_m))
    position = Scheduler.start(order, 0, config.num_clusters * config.blocks_per_fetch)
    while position.advance_to_valid().valid():
        position = position.advance_to_valid()
        assert not position.invalid() and position.advance_to_valid() == position
        assert 0 <= position.local < position.sizes.total
        position = position.skip()
    end = position.advance_to_valid().block()
    assert end.expert == config.problem.experts_per_rank and end.valid_m <= 0


def test_worked_order():
    """Two experts, Linear1 one of them ahead, one cluster, two weight blocks in each phase; the first expert has a short second block."""
    blocks = list(FusedMoeOrder.blocks(config_of(2, 1, num_sms=2), [17, 3], 0))
    assert blocks == [
        *(Block(FC1, 0, 0, n, 0, 16) for n in range(2)),
        *(Block(FC1, 0, 1, n, 1, 1) for n in range(2)),
        *(Block(FC1, 1, 0, n, 2, 3) for n in range(2)),
        *(Block(FC2, 0, 0, n, 0, 16) for n in range(2)),
        *(Block(FC2, 0, 1, n, 1, 1) for n in range(2)),
        *(Block(FC2, 1, 0, n, 2, 3) for n in range(2)),
    ]


def test_worked_order_of_groups():
    """SM90: the token blocks of a group there and back under one weight block after the other, seventeen of them in two groups."""
    problem = Problem(512, 256, 1, 1, max_tokens_per_rank=256, recipe="fp8xfp8")
    order = [(b.n_block, b.m_block) for b in FusedMoeOrder.blocks(Sm90Config(problem, 8, 1, 2), [129], 0) if b.phase == FC1]
    both = [(b.n_block, b.m_block) for b in oracle(Sm90Config(problem, 8, 1, 2), [129]) if b.phase == FC1]
    assert both == [*((0, m) for m in range(16)), *((1, m) for m in reversed(range(16))), (0, 16), (1, 16)]
    assert order == both[::2]


def test_worked_order_of_pairs():
    """Three token blocks: two with one weight block, the third with both weight blocks, then two with the other weight block."""
    problem = Problem(512, 256, 1, 1, max_tokens_per_rank=512, recipe="fp8xfp8")
    blocks = list(FusedMoeOrder.blocks(Sm90Config(problem, 128, 1, 2, cluster=2), [300], 0))
    assert [(b.m_block, b.n_block) for b in blocks] == 2 * [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]


@pytest.mark.parametrize(
    ("lookahead", "order"),
    [(1, "a b A c B d C D"), (2, "a b c A d B C D"), (3, "a b c d A B C D"), (4, "a b c d A B C D")],
)
def test_linear1_is_ahead(lookahead, order):
    """Letters are experts, capital ones their Linear2."""
    blocks = list(FusedMoeOrder.blocks(config_of(4, lookahead, num_sms=2), [1, 1, 1, 1], 0))
    assert [("abcd", "ABCD")[b.phase][b.expert] for b in blocks if b.n_block == 0] == order.split()


def runs(config, counts):
    """Blocks of one kind that follow one another, as in 16a for Linear1 of the first expert and 2B for Linear2 of the second."""
    blocks = interleaved(by_cluster(FusedMoeOrder.blocks, config, counts), config.blocks_per_fetch)
    names = [("ab", "AB")[b.phase][b.expert] for b in blocks]
    return " ".join(f"{len(list(same))}{name}" for name, same in groupby(names))


@pytest.mark.parametrize(
    ("counts", "order"),
    [
        ([64, 64], "16a 16b 16A 16B"),
        ([64, 72], "16a 16b 16A 2b 18B"),
        ([136, 72], "34a 16b 16A 2b 18A 18B"),
        ([72, 136], "18a 16b 16A 18b 2A 34B"),
        ([128, 128], "32a 16b 16A 16b 16A 32B"),
    ],
)
def test_runs_of_both_phases_alternate(counts, order):
    """Sixteen of each while both have sixteen, then what is left; two weight blocks in each phase."""
    problem = Problem(512, 256, 2, 1, max_tokens_per_rank=512, recipe="fp8xfp8")
    assert runs(Sm90Config(problem, 8, 1, 2), counts) == order


@pytest.mark.parametrize(
    ("counts", "order"),
    [([1024, 1024], "16a 16b 16A 16B"), ([2048, 2049], "32a 32b 32A 2b 34B"), ([4096, 4096], "64a 32b 32A 32b 32A 64B")],
)
def test_a_pair_fetches_two_blocks(counts, order):
    problem = Problem(512, 256, 2, 1, max_tokens_per_rank=8192, recipe="fp8xfp8")
    assert runs(Sm90Config(problem, 128, 1, 4, cluster=2), counts) == order


@pytest.mark.parametrize("lookahead", [1, 2, 3, 6])
@pytest.mark.parametrize("counts", [[0] * 6, [0, 0, 0, 0, 0, 5], [5, 0, 0, 0, 0, 0], [0, 40, 0, 0, 16, 0], [0, 0, 7, 7, 0, 0]])
def test_experts_without_tokens(counts, lookahead):
    config = config_of(6, lookahead, num_sms=6)
    check_schedule(FusedMoeOrder.blocks, config, counts)
    assert not any(counts[b.expert] == 0 for b in interleaved(by_cluster(FusedMoeOrder.blocks, config, counts)))


def test_more_clusters_than_blocks():
    config = config_of(1, 1, num_sms=148)
    lists = by_cluster(FusedMoeOrder.blocks, config, [1])
    assert [len(blocks) for blocks in lists[:5]] == [1, 1, 1, 1, 0] and not any(lists[4:])


def test_published_shape():
    problem = Problem(4096, 2048, 256, 6, num_ranks=8, max_tokens_per_rank=512)
    config = choose(problem, Target.typical("sm_100a"), 512)
    counts = [(37 * e) % 200 for e in range(32)]
    check_schedule(FusedMoeOrder.blocks, config, counts)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.sampled_from((16, 32, 64, 96, 128, 192)))
def test_host_table(counts, block_m):
    table = HostTable.of(counts, block_m)
    assert [table.tokens(e) for e in range(len(counts) + 1)] == [*counts, 0]
    first = 0
    for expert, tokens in enumerate([*counts, 0]):
        assert table.first_block(expert) == first
        first += (tokens + block_m - 1) // block_m


@pytest.mark.parametrize("counts", [[1, 2, 3], [1, 2, 3, 4, 5]])
def test_counts_must_match_the_experts(counts):
    with pytest.raises(ValueError, match=rf"counts has {len(counts)} entries: must have experts_per_rank = 4"):
        list(FusedMoeOrder.blocks(config_of(4, 2), counts, 0))


# --- mutations
class ForgetsLinear2(FusedMoeOrder):
    """Runs Linear1 only."""

    def sizes(self, part):
        return dataclasses.replace(super().sizes(part), fc2=0)


class Hurries(FusedMoeOrder):
    """Runs Linear2 of an expert in the step after its Linear1, whatever the lookahead."""

    @classmethod
    def blocks(cls, config, counts, cluster):
        return super().blocks(config.replace(lookahead=1), counts, cluster)


class StepsBySm(FusedMoeOrder):
    """Steps over CTAs instead of clusters."""

    @classmethod
    def blocks(cls, config, counts, cluster):
        return Scheduler.blocks(cls(config, HostTable.of(counts, config.block_m)), cluster, config.num_sms)


class LosesOneBlock(Scheduler):
    """Subtracts one block too many when it leaves a step."""

    def advance(self):
        following = super().advance()
        return dataclasses.replace(following, local=max(following.local - 1, 0))


class LosesOne(FusedMoeOrder):
    """Is walked by a scheduler that loses a block."""

    @classmethod
    def blocks(cls, config, counts, cluster):
        return LosesOneBlock.blocks(cls(config, HostTable.of(counts, config.block_m)), cluster, config.num_clusters)


class FullBlocks(FusedMoeOrder):
    """Takes every block for a full one."""

    def block(self, *position):
        return dataclasses.replace(super().block(*position), valid_m=self.config.block_m)


class SharesPoolBlocks(FusedMoeOrder):
    """Ignores where the expert starts in the pool."""

    def block(self, *position):
        block = super().block(*position)
        return dataclasses.replace(block, pool_block=block.m_block)


class SwapsOrder(FusedMoeOrder):
    """Token blocks fastest."""

    def _place(self, is_fc1, number, m_blocks):
        return number % m_blocks, number // m_blocks


class NeverTurnsBack(FusedMoeOrder):
    """Begins every weight block with the band's first token block."""

    def _place(self, is_fc1, number, m_blocks):
        m_block, n_block = super()._place(is_fc1, number, m_blocks)
        first = m_block // self.config.group_m * self.config.group_m
        rows = min(m_blocks - first, self.config.group_m)
        return (m_block if n_block % 2 == 0 else 2 * first + rows - 1 - m_block), n_block


class OneBlockShort(FusedMoeOrder):
    """Drops the last block of Linear2."""

    def sizes(self, part):
        true = super().sizes(part)
        return dataclasses.replace(true, fc2=max(true.fc2 - 1, 0))


class NeverAlternates(FusedMoeOrder):
    """Runs all of the step's Linear1, then all of its Linear2."""

    def _part(self, local, sizes):
        in_fc1 = local < sizes.fc1
        return (FC1, local) if in_fc1 else (FC2, local - sizes.fc1)


MUTANTS = {
    ForgetsLinear2: check_complete,
    Hurries: check_dependencies,
    StepsBySm: check_complete,
    LosesOne: check_complete,
    FullBlocks: check_places,
    SharesPoolBlocks: check_places,
    SwapsOrder: check_order,
    OneBlockShort: check_complete,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_order_is_caught(mutant):
    """By the property named for it, and by the whole check."""
    config, counts = config_of(4, 3, num_sms=4, hidden=768, intermediate=256), [17, 3, 40, 16]
    lists = [list(islice(mutant.blocks(config, counts, cluster), 200)) for cluster in range(config.num_clusters)]
    arguments = {check_dependencies: (config,), check_order: (config,)}.get(MUTANTS[mutant], (config, counts))
    MUTANTS[mutant](by_cluster(FusedMoeOrder.blocks, config, counts), *arguments)
    with pytest.raises(AssertionError):
        MUTANTS[mutant](lists, *arguments)
    with pytest.raises(AssertionError):
        check_schedule(mutant.blocks, config, counts)


def test_a_walk_that_never_turns_back_is_caught():
    """With an odd number of token blocks pairs would have neither weights nor tokens in common."""
    problem = Problem(512, 256, 1, 1, max_tokens_per_rank=512, recipe="fp8xfp8")
    config, counts = Sm90Config(problem, 128, 1, 4, cluster=2), [300]
    lists = by_cluster(NeverTurnsBack.blocks, config, counts)
    check_complete(lists, config, counts)
    check_fetches(by_cluster(FusedMoeOrder.blocks, config, counts), config)
    with pytest.raises(AssertionError):
        check_fetches(lists, config)
    check_neighbors(oracle(config, counts), config)
    with pytest.raises(AssertionError):
        check_neighbors(interleaved(lists, 2), config)
    with pytest.raises(AssertionError):
        check_schedule(NeverTurnsBack.blocks, config, counts)


def test_a_walk_that_never_alternates_is_caught():
    config, counts = config_of(3, 1, num_sms=4), [160, 200, 128]
    lists = by_cluster(NeverAlternates.blocks, config, counts)
    check_complete(lists, config, counts)
    check_dependencies(lists, config)
    check_mixture(interleaved(by_cluster(FusedMoeOrder.blocks, config, counts)), config)
    with pytest.raises(AssertionError):
        check_mixture(interleaved(lists), config)
    with pytest.raises(AssertionError):
        check_schedule(NeverAlternates.blocks, config, counts)


def test_unfair_dealing_is_caught():
    blocks = oracle(config_of(2, 1), [3, 20])
    check_balance([blocks[0::2], blocks[1::2]])
    with pytest.raises(AssertionError):
        check_balance([blocks[:2], blocks[2:]])
