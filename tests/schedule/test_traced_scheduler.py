"""Traced and host evaluation of the scheduler agree: `@cute.jit` host functions walk on the CPU, with run-time Int32 state, no GPU."""

import os
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from megamoe_dsl.kernels.mega_moe.sm90.config import BLOCK_M, Sm90Config
from megamoe_dsl.kernels.mega_moe.sm100.config import TIERS, Sm100Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule import HostTable, Scheduler

STATES = 2000
TRACED = ("phase", "expert", "m_block", "n_block", "pool_block", "valid_m", "mma_n")
MOVES = ("step", "local", "fc1_blocks", "fc2_blocks")
WIDTH = 1 + len(TRACED) + 2 * len(MOVES)

# Every block_m, even and odd divisors (powers of two become shifts and masks), one expert and many.
CONFIGS = [
    Sm100Config(Problem(512, 384, 12, 2), 16, 16, 2, 4, 6, 2),
    Sm100Config(Problem(1792, 256, 7, 2), 96, 32, 2, 7, 10, 2),
    Sm100Config(Problem(4096, 2048, 256, 6, num_ranks=8), 192, 32, 2, 8, 148, 2),
    Sm90Config(Problem(1792, 384, 12, 2, recipe="fp8xfp8"), 8, 4, 5),
    Sm90Config(Problem(7168, 3072, 96, 6, num_ranks=2, recipe="fp8xfp8"), 128, 2, 132, cluster=2),
]


@pytest.fixture(scope="module")
def traced():
    """(step, walk): host functions compiled from the same `Scheduler` that the tests above prove."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32

    @dataclass(frozen=True)
    class MemoryTable:
        words: cute.Tensor

        def tokens(self, expert: Any) -> Any:
            return self.words[2 * expert]

        def pool_block(self, expert: Any) -> Any:
            return self.words[2 * expert + 1]

    @dataclass(frozen=True)
    class Walk(Scheduler):
        config: cutlass.Constexpr[Any]
        table: MemoryTable
        stride: cutlass.Constexpr[int]

    @cute.jit
    def advance_to_valid(position: Walk) -> Walk:
        while position.invalid():
            position = position.advance()
        return position

    @cute.jit
    def step(config: cutlass.Constexpr, words: cute.Tensor, states: cute.Tensor, out: cute.Tensor, count: Int32):
        """Row i of `out`: whether state i is invalid, its block, then the fields after `advance` and after `skip`."""
        table = MemoryTable(words)
        for i in range(count):
            position = Walk(config, table, states[i, 0], states[i, 1], states[i, 2], states[i, 3], config.num_clusters)
            block = position.block()
            values = [Int32(position.invalid())]
            values += [Int32(getattr(block, name)) for name in TRACED]
            for moved in (position.advance(), position.skip()):
                values += [getattr(moved, name) for name in MOVES]
            for j in cutlass.range_constexpr(WIDTH):
                out[i, j] = values[j]

    @cute.jit
    def walk(config: cutlass.Constexpr, every: cutlass.Constexpr, words: cute.Tensor, out: cute.Tensor, block: Int32, limit: Int32):
        """Rows of `out`: up to `limit` blocks of a walk, then -1 if it ended and -2 if it did not, and
        the expert and valid_m of the block there."""
        position = advance_to_valid(Walk.start(config, MemoryTable(words), block, every, Int32))
        row = Int32(0)
        while position.valid() & (row < limit):
            tile = position.block()
            fields = (tile.phase, tile.expert, tile.m_block, tile.n_block, tile.pool_block, tile.valid_m)
            for j in cutlass.range_constexpr(6):
                out[row, j] = fields[j]
            row += 1
            position = advance_to_valid(position.skip())
        end = position.block()
        out[row, 0] = Int32(-1) - Int32(position.valid())
        out[row, 1] = end.expert
        out[row, 2] = end.valid_m

    return step, walk


def tensor(array):
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(array)


def random_counts(config, rng):
    edges = (0, 0, 1, config.block_m - 1, config.block_m, config.block_m + 1, rng.randrange(4 * config.block_m), 19 * config.block_m)
    return [rng.choice(edges) for _ in range(config.problem.experts_per_rank)]


def table_words(config, table):
    return np.array([[table.tokens(e), table.pool_block(e)] for e in range(config.problem.experts_per_rank + 1)], np.int32).ravel()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.arch}-{c.block_m}")
def test_traced_step_equals_host_step(traced, config):
    """Random positions of all steps, settled, at the end of their step or past it; those of no expert have no place in the table."""
    rng = random.Random(config.block_m)
    experts, counts = config.problem.experts_per_rank, random_counts(config, rng)
    table = HostTable.of(counts, config.block_m)
    positions = []
    while len(positions) < STATES:
        step = rng.randrange(experts + config.lookahead)
        m_blocks = [-(-counts[expert] // config.block_m) if 0 <= expert < experts else 0 for expert in (step, step - config.lookahead)]
        fc1_blocks, fc2_blocks = m_blocks[0] * config.fc1_n_blocks, m_blocks[1] * config.fc2_n_blocks
        position = Scheduler(config, table, step, 0, fc1_blocks, fc2_blocks, config.num_clusters)
        blocks = fc1_blocks + fc2_blocks
        edges = (0, max(blocks - 1, 0), blocks, blocks + 1, rng.randrange(2 * blocks + 10), rng.randrange(blocks + 1))
        position = replace(position, local=rng.choice(edges))
        if step >= config.lookahead or position.local < fc1_blocks:
            positions.append(position)
    states = np.array([[p.step, p.local, p.fc1_blocks, p.fc2_blocks] for p in positions], np.int32)
    out = np.zeros((STATES, WIDTH), np.int32)
    traced[0](config, tensor(table_words(config, table)), tensor(states), tensor(out), STATES)
    for position, row in zip(positions, out.tolist(), strict=True):
        block = position.block()
        expected = [int(position.invalid()), *(int(getattr(block, name)) for name in TRACED)]
        for moved in (position.advance(), position.skip()):
            expected += [getattr(moved, name) for name in MOVES]
        assert row == expected, position


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.arch}-{c.block_m}")
def test_traced_walk_equals_host_walk(traced, config):
    """Whole walks of some clusters, alone and as one of two warpgroups that alternate."""
    rng = random.Random(config.block_m)
    every = getattr(config, "epilogue_warpgroups", 1)
    for counts in (random_counts(config, rng), [0] * config.problem.experts_per_rank, [1] * config.problem.experts_per_rank):
        table = HostTable.of(counts, config.block_m)
        words = tensor(table_words(config, table))
        for cluster in (0, config.num_clusters // 2, config.num_clusters - 1):
            turn = config.blocks_per_fetch
            blocks = list(Scheduler.blocks(config, counts, cluster))[::turn]
            for group in range(every):
                expected = [[b.phase, b.expert, b.m_block, b.n_block, b.pool_block, b.valid_m] for b in blocks[group::every]]
                out = np.zeros((len(expected) + 1, 6), np.int32)
                traced[1](config, every, words, tensor(out), (cluster + group * config.num_clusters) * turn, len(expected))
                assert out[:-1].tolist() == expected
                assert out[-1, :2].tolist() == [-1, config.problem.experts_per_rank] and out[-1, 2] <= 0


def test_configs_cover_powers_of_two_and_other_divisors():
    assert {c.block_m for c in CONFIGS} < {t.block_m for t in TIERS} | set(BLOCK_M)
    assert {c.fc2_n_blocks for c in CONFIGS} == {2, 7, 16, 28} and {c.fc1_n_blocks for c in CONFIGS} == {3, 2, 16, 24}
