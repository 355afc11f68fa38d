"""What must hold of a block schedule, as functions of `blocks(config, counts, cluster)`; and an oracle of plain nested loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, zip_longest

from megamoe_dsl.config import KernelConfig
from megamoe_dsl.schedule import Block

Blocks = Callable[[KernelConfig, Sequence[int], int], Iterable[Block]]


def oracle(config: KernelConfig, counts: Sequence[int]) -> list[Block]:
    """All blocks of a launch: Linear1 of the first wave, then Linear1 of each next wave before Linear2 of the one before it."""
    problem, block_m = config.problem, config.block_m
    waves = range(0, len(counts), config.experts_per_wave)
    order = [(waves[0], 0)]
    for index, wave in enumerate(waves):
        order += [(following, 0) for following in waves[index + 1 : index + 2]] + [(wave, 1)]
    sequence = []
    for wave, phase in order:
        n_blocks = (2 * problem.intermediate // 256, problem.hidden // 256)[phase]
        for expert in range(wave, wave + config.experts_per_wave):
            pool_block = 0
            for earlier in range(expert):
                pool_block += (counts[earlier] + block_m - 1) // block_m
            for m_block, first in enumerate(range(0, counts[expert], block_m)):
                rows = len(range(first, min(first + block_m, counts[expert])))
                for n_block in range(n_blocks):
                    sequence.append(Block(phase, expert, m_block, n_block, pool_block + m_block, rows))
    return sequence


def dealt(blocks: Blocks, config: KernelConfig, counts: Sequence[int]) -> list[list[Block]]:
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


def interleaved(lists: Sequence[Sequence[Block]]) -> list[Block]:
    """The sequence that was dealt, if it was dealt round robin."""
    return [block for turn in zip_longest(*lists) for block in turn if block is not None]


def check_complete(lists: Sequence[Sequence[Block]], config: KernelConfig, counts: Sequence[int]) -> None:
    """Every (phase, expert, m, n) exactly once over all clusters, and every token of every expert covered in both phases."""
    seen = Counter((b.phase, b.expert, b.m_block, b.n_block) for blocks in lists for b in blocks)
    assert set(seen) == {(b.phase, b.expert, b.m_block, b.n_block) for b in oracle(config, counts)}
    assert all(times == 1 for times in seen.values())
    for phase in (0, 1):
        covered = Counter(dict.fromkeys(range(len(counts)), 0))
        for block in (b for blocks in lists for b in blocks if b.phase == phase and b.n_block == 0):
            covered[block.expert] += block.valid_m
        assert [covered[e] for e in range(len(counts))] == list(counts)


def check_dependencies(lists: Sequence[Sequence[Block]], config: KernelConfig) -> None:
    """No deadlock: in the global order every L1 block of a wave precedes every L2 block of it.  And each phase takes the waves in order,
    Linear1 never more than one wave before Linear2.

    Cluster c's i-th block has number i * C + c.  A cluster works in order, so a block waits only for lower numbers.
    """
    stages = []
    for cluster, blocks in enumerate(lists):
        for i, block in enumerate(blocks):
            stages.append((i * config.num_clusters + cluster, block.expert // config.experts_per_wave, block.phase))
    stages.sort()
    assert [number for number, _, _ in stages] == list(range(len(stages)))
    keys = [(max(0, wave - 1) if phase == 0 else wave, phase, wave) for _, wave, phase in stages]
    assert keys == sorted(keys)
    last_l1 = {wave: number for number, wave, phase in stages if phase == 0}
    assert all(last_l1[wave] < number for number, wave, phase in stages if phase == 1)


def check_places(lists: Sequence[Sequence[Block]], config: KernelConfig, counts: Sequence[int]) -> None:
    """A block's place in the pool belongs to its expert, agrees between the phases, and holds `valid_m` tokens."""
    first, places = 0, {}
    for expert, tokens in enumerate(counts):
        for m_block in range(-(-tokens // config.block_m)):
            places[expert, m_block] = (first + m_block, min(config.block_m, tokens - m_block * config.block_m))
        first += -(-tokens // config.block_m)
    for block in (b for blocks in lists for b in blocks):
        assert (block.pool_block, block.valid_m) == places[block.expert, block.m_block], block
        assert 1 <= block.valid_m <= config.block_m


def check_order(lists: Sequence[Sequence[Block]], config: KernelConfig) -> None:
    """Within a cluster and a phase: expert, m and n never go back."""
    for blocks in lists:
        for phase in (0, 1):
            keys = [(b.expert, b.m_block, b.n_block) for b in blocks if b.phase == phase]
            assert all(a < b for a, b in pairwise(keys))


def check_balance(lists: Sequence[Sequence[Block]]) -> None:
    """Round robin: clusters differ by at most one block, and the first ones have more."""
    lengths = [len(blocks) for blocks in lists]
    assert max(lengths) - min(lengths) <= 1 and lengths == sorted(lengths, reverse=True)


def check_schedule(blocks: Blocks, config: KernelConfig, counts: Sequence[int]) -> None:
    """All properties, and equality with the oracle."""
    lists = dealt(blocks, config, counts)
    check_complete(lists, config, counts)
    check_dependencies(lists, config)
    check_places(lists, config, counts)
    check_order(lists, config)
    check_balance(lists)
    assert interleaved(lists) == oracle(config, counts)
