"""What must hold of a block schedule, as functions of `blocks(config, counts, cluster)`; and an oracle of plain nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.schedule.fused_moe import Block

Config = Sm100Config | Sm90Config


@dataclass(frozen=True)
class GemmPlan:
    """What the orders of dense and grouped GEMMs read of a configuration."""

    block_m: int
    n_blocks: int
    group_m: int
    num_experts: int = 1


Blocks = Callable[[Config, Sequence[int], int], Iterable[Block]]


def oracle(config: Config, counts: Sequence[int]) -> list[Block]:
    """All blocks of a launch, step by step: an expert's Linear1 and the Linear2 of the one `lookahead` before it, 16 fetches of one and 16
    of the other while both have as many, then the rest of Linear1 and of Linear2."""
    sequence, size = [], 16 * config.blocks_per_fetch
    for step in range(len(counts) + config.lookahead):
        parts = []
        for phase, expert in ((0, step), (1, step - config.lookahead)):
            parts.append(blocks_of(config, counts, phase, expert) if 0 <= expert < len(counts) else [])
        while min(map(len, parts)) >= size:
            for part in parts:
                sequence += part[:size]
                del part[:size]
        sequence += parts[0] + parts[1]
    return sequence


def blocks_of(config: Config, counts: Sequence[int], phase: int, expert: int) -> list[Block]:
    """An expert's blocks of one phase: by groups of token blocks, there and back under one weight block after the other."""
    problem, block_m = config.problem, config.block_m
    n_blocks = (2 * problem.intermediate // 256, problem.hidden // 256)[phase]
    pool_block = 0
    for earlier in range(expert):
        pool_block += (counts[earlier] + block_m - 1) // block_m
    m_blocks, found = list(enumerate(range(0, counts[expert], block_m))), []
    for begin in range(0, len(m_blocks), config.group_m):
        group = m_blocks[begin : begin + config.group_m]
        for n_block in range(n_blocks):
            for m_block, first in group if n_block % 2 == 0 else reversed(group):
                rows = len(range(first, min(first + block_m, counts[expert])))
                found.append(Block(phase, expert, m_block, n_block, pool_block + m_block, rows))
    return found


def by_cluster(blocks: Blocks, config: Config, counts: Sequence[int]) -> list[list[Block]]:
    """The blocks of every cluster."""
    limit = len(oracle(config, counts)) + 1
    lists = []
    for cluster in range(config.num_clusters):
        mine: list[Block] = []
        for block in blocks(config, counts, cluster):
            mine.append(block)
            assert len(mine) <= limit, "a cluster repeats itself"
        lists.append(mine)
    return lists


def interleaved(lists: Sequence[Sequence[Block]], at_a_time: int = 1) -> list[Block]:
    """The whole sequence, if clusters take `at_a_time` blocks at a time, round robin."""
    fetches = ([blocks[i : i + at_a_time] for i in range(0, len(blocks), at_a_time)] for blocks in lists)
    return [block for one in zip_longest(*fetches, fillvalue=[]) for taken in one for block in taken]


def check_complete(lists: Sequence[Sequence[Block]], config: Config, counts: Sequence[int]) -> None:
    """Every (phase, expert, m, n) exactly once over all clusters, and every token of every expert covered in both phases."""
    seen = Counter((b.phase, b.expert, b.m_block, b.n_block) for blocks in lists for b in blocks)
    assert set(seen) == {(b.phase, b.expert, b.m_block, b.n_block) for b in oracle(config, counts)}
    assert all(times == 1 for times in seen.values())
    for phase in (0, 1):
        covered = Counter(dict.fromkeys(range(len(counts)), 0))
        for block in (b for blocks in lists for b in blocks if b.phase == phase and b.n_block == 0):
            covered[block.expert] += block.valid_m
        assert [covered[e] for e in range(len(counts))] == list(counts)


def check_dependencies(lists: Sequence[Sequence[Block]], config: Config) -> None:
    """No deadlock: in the global order every Linear1 block of an expert precedes every Linear2 block of it.  And each phase takes the
    experts in order, neither too early: Linear1 of an expert begins when Linear2 of the one more than `lookahead` before it is done, and
    Linear2 of an expert when Linear1 of all that are less than `lookahead` after it is.

    With fetches of one block cluster c's i-th block has number i * C + c.  A cluster works in order: a block waits for lower numbers only.
    """
    stages, at_a_time = [], config.blocks_per_fetch
    for cluster, blocks in enumerate(lists):
        for i, block in enumerate(blocks):
            number = (i // at_a_time * config.num_clusters + cluster) * at_a_time + i % at_a_time
            stages.append((number, block.expert, block.phase))
    stages.sort()
    assert [number for number, _, _ in stages] == list(range(len(stages)))
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for number, expert, phase in stages:
        first.setdefault((phase, expert), number)
        last[phase, expert] = number
    for phase in (0, 1):
        experts = [expert for _, expert, its in stages if its == phase]
        assert experts == sorted(experts)
    for expert in {expert for phase, expert in first if phase == 1}:
        assert last[0, expert] < first[1, expert]
        assert all(last[0, n] < first[1, expert] for n in range(expert, expert + config.lookahead) if (0, n) in last)
        assert all(last[1, expert] < first[0, n] for phase, n in first if phase == 0 and n > expert + config.lookahead)


def check_mixture(sequence: Sequence[Block], config: Config) -> None:
    """No more than 16 fetches of Linear1 or Linear2 follow one another while the other phase has as many left in this step."""
    for step in range(config.problem.experts_per_rank + config.lookahead):
        mine = [block.phase for block in sequence if block.expert == step - config.lookahead * block.phase]
        size = 16 * config.blocks_per_fetch
        both = min(mine.count(0), mine.count(1)) // size
        assert mine[: 2 * both * size] == both * (size * [0] + size * [1])


def check_places(lists: Sequence[Sequence[Block]], config: Config, counts: Sequence[int]) -> None:
    """A block's place in the pool belongs to its expert, agrees between the phases, and holds `valid_m` tokens."""
    first, places = 0, {}
    for expert, tokens in enumerate(counts):
        for m_block in range(-(-tokens // config.block_m)):
            places[expert, m_block] = (first + m_block, min(config.block_m, tokens - m_block * config.block_m))
        first += -(-tokens // config.block_m)
    for block in (b for blocks in lists for b in blocks):
        assert (block.pool_block, block.valid_m) == places[block.expert, block.m_block], block
        assert 1 <= block.valid_m <= config.block_m


def check_order(lists: Sequence[Sequence[Block]], config: Config) -> None:
    """Within a cluster and a phase: expert, group of token blocks and n never go back; m goes there and back."""
    for blocks in lists:
        for phase in (0, 1):
            mine = [b for b in blocks if b.phase == phase]
            keys = [(b.expert, b.m_block // config.group_m, b.n_block, (b.m_block, -b.m_block)[b.n_block % 2]) for b in mine]
            assert all(a < b for a, b in pairwise(keys))


def check_balance(lists: Sequence[Sequence[Block]], at_a_time: int = 1) -> None:
    """Round robin: clusters differ by at most one fetch, and the first ones have more."""
    lengths = [len(blocks) for blocks in lists]
    assert max(lengths) - min(lengths) <= at_a_time and lengths == sorted(lengths, reverse=True)


def check_fetches(lists: Sequence[Sequence[Block]], config: Config) -> None:
    """The blocks that a cluster takes at a time are of one expert and phase, and have one token block or one weight block."""
    at_a_time = config.blocks_per_fetch
    for blocks in lists:
        assert len(blocks) % at_a_time == 0
        for i in range(0, len(blocks), at_a_time):
            taken = blocks[i : i + at_a_time]
            assert len({(b.phase, b.expert) for b in taken}) == 1
            assert 1 in (len({b.m_block for b in taken}), len({b.n_block for b in taken}))


def check_neighbors(sequence: Sequence[Block], config: Config) -> None:
    """Two blocks of a phase that follow one another in a group have one token block or one weight block."""
    by_phase = [block for phase in (0, 1) for block in sequence if block.phase == phase]
    for a, b in pairwise(by_phase):
        if (a.phase, a.expert, a.m_block // config.group_m) == (b.phase, b.expert, b.m_block // config.group_m):
            assert abs(a.m_block - b.m_block) + abs(a.n_block - b.n_block) == 1


def check_schedule(blocks: Blocks, config: Config, counts: Sequence[int]) -> None:
    """All properties, and equality with the oracle."""
    lists = by_cluster(blocks, config, counts)
    check_complete(lists, config, counts)
    check_dependencies(lists, config)
    check_places(lists, config, counts)
    check_order(lists, config)
    check_balance(lists, config.blocks_per_fetch)
    check_fetches(lists, config)
    sequence = interleaved(lists, config.blocks_per_fetch)
    check_neighbors(sequence, config)
    check_mixture(sequence, config)
    assert sequence == oracle(config, counts)
