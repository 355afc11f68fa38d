"""Traced and host evaluation of the scheduler agree, for every order: `@cute.jit` host functions walk on the CPU, with run-time Int32
state, no GPU."""

import os
import random
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from schedule_properties import GemmPlan

from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M, Sm90Config
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import Block, FusedMoeOrder, HostTable, PhaseSizes, RingOrder, RingStep
from megamoe_dsl.schedule.gemm import DenseOrder, GemmBlock, GroupedOrder
from megamoe_dsl.schedule.scheduler import OneSize, Scheduler
from sweep import sample

STATES = 2000

# Every block_m, even and odd divisors (powers of two become shifts and masks), one expert and many.
CONFIGS = [
    Sm100Config(Problem(512, 384, 12, 2), 16, 4, 6, 2, store_block_m=16, epilogue_warpgroups=2),
    Sm100Config(Problem(1792, 256, 7, 2), 96, 7, 10, 2, store_block_m=32, epilogue_warpgroups=2),
    Sm100Config(Problem(4096, 2048, 256, 6, num_ranks=8), 192, 8, 148, 2, store_block_m=32, epilogue_warpgroups=2),
    Sm90Config(Problem(1792, 384, 12, 2, recipe="fp8xfp8"), 8, 4, 5),
    Sm90Config(Problem(7168, 3072, 96, 6, num_ranks=2, recipe="fp8xfp8"), 128, 2, 132, cluster=2),
]
RINGS = [
    Sm90Config(Problem(512, 384, 7, 2, max_tokens_per_rank=700, recipe="fp8xfp8"), 8, 4, 5, pool_rows=128),
    Sm90Config(Problem(1792, 512, 5, 2, max_tokens_per_rank=4096, recipe="fp8xfp8"), 128, 2, 132, pool_rows=1280),
]
PLANS = [GemmPlan(128, 16, 8, 5), GemmPlan(96, 7, 1, 12), GemmPlan(64, 5, 3, 1)]


class Family(NamedTuple):
    """An order, and the integers of its blocks and of its steps' sizes."""

    order: type
    block: tuple[str, ...]
    sizes: tuple[str, ...]


def names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


FUSED = Family(FusedMoeOrder, (*names(Block), "mma_n"), names(PhaseSizes))
RING = Family(RingOrder, names(Block), names(RingStep))
DENSE = Family(DenseOrder, names(GemmBlock), names(OneSize))
GROUPED = Family(GroupedOrder, names(GemmBlock), names(OneSize))
CASES = [
    *((FUSED, one) for one in CONFIGS),
    *((RING, one) for one in RINGS),
    *((family, plan) for family in (DENSE, GROUPED) for plan in PLANS),
]


def label(value: Any) -> str:
    return value.order.__name__ if isinstance(value, Family) else f"{type(value).__name__}-{value.block_m}"


def state_of(position: Any, sizes: tuple[str, ...]) -> list[Any]:
    return [position.step, position.local, *(getattr(position.sizes, name) for name in sizes)]


@pytest.fixture(scope="module")
def traced():
    """(step, walk): host functions compiled from the same `Scheduler` and orders that the host's tests prove."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass
    import cutlass.cute as cute
    from cutlass import Int32

    from megamoe_dsl.blocks.tiles import Walk, advance_to_valid, next_block

    @dataclass(frozen=True)
    class MemoryTable:
        words: cute.Tensor

        def tokens(self, expert: Any) -> Any:
            return self.words[2 * expert]

        def first_block(self, expert: Any) -> Any:
            return self.words[2 * expert + 1]

    @dataclass(frozen=True)
    class TracedFused(FusedMoeOrder):
        config: cutlass.Constexpr[Any]
        table: MemoryTable

    @dataclass(frozen=True)
    class TracedRing(RingOrder):
        config: cutlass.Constexpr[Any]
        table: MemoryTable

    @dataclass(frozen=True)
    class TracedGrouped(GroupedOrder):
        config: cutlass.Constexpr[Any]
        table: MemoryTable

    @dataclass(frozen=True)
    class TracedDense(DenseOrder):
        config: cutlass.Constexpr[Any]
        rows: Int32

    def order_of(family: Family, config: Any, words: Any) -> Any:
        if family is DENSE:
            return TracedDense(config, words[0])
        kinds = {FUSED.order: TracedFused, RING.order: TracedRing, GROUPED.order: TracedGrouped}
        return kinds[family.order](config, MemoryTable(words))

    def sizes_of(family: Family, values: list[Any]) -> Any:
        kinds = {FUSED.order: PhaseSizes, RING.order: RingStep}
        return kinds.get(family.order, OneSize)(*values)

    @cute.jit
    def step(family: cutlass.Constexpr, config: cutlass.Constexpr, words: cute.Tensor, states: cute.Tensor, out: cute.Tensor, count: Int32):
        """Row i of `out`: whether state i is invalid, its block, then the state after `advance` and after `skip`."""
        order = order_of(family, config, words)
        for i in range(count):
            sizes = sizes_of(family, [states[i, 2 + j] for j in range(len(family.sizes))])
            position = Walk(order, states[i, 0], states[i, 1], sizes, 7)
            block = position.block()
            values = [Int32(position.invalid()), *(Int32(getattr(block, name)) for name in family.block)]
            for moved in (position.advance(), position.skip()):
                values += state_of(moved, family.sizes)
            for j in cutlass.range_constexpr(len(values)):
                out[i, j] = values[j]

    @cute.jit
    def walk(
        family: cutlass.Constexpr,
        config: cutlass.Constexpr,
        stride: cutlass.Constexpr,
        words: cute.Tensor,
        out: cute.Tensor,
        first: Int32,
        limit: Int32,
    ):
        """Rows of `out`: up to `limit` blocks of a walk, then the block past the last and whether it is one."""
        position = advance_to_valid(Walk.start(order_of(family, config, words), first, stride, Int32))
        row = Int32(0)
        while position.valid() & (row < limit):
            block = position.block()
            for j in cutlass.range_constexpr(len(family.block)):
                out[row, j] = Int32(getattr(block, family.block[j]))
            row += 1
            position = next_block(position)
        block = position.block()
        for j in cutlass.range_constexpr(len(family.block)):
            out[row, j] = Int32(getattr(block, family.block[j]))
        out[row + 1, 0] = Int32(position.valid())

    return step, walk


def tensor(array):
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(array)


def experts_of(config):
    return config.num_experts if isinstance(config, GemmPlan) else config.problem.experts_per_rank


def random_counts(config, rng):
    edges = (0, 0, 1, config.block_m - 1, config.block_m, config.block_m + 1, rng.randrange(4 * config.block_m), 19 * config.block_m)
    return [rng.choice(edges) for _ in range(experts_of(config))]


def host_order(family, config, counts):
    return DenseOrder(config, counts[0]) if family is DENSE else family.order(config, HostTable.of(counts, config.block_m))


def words_of(config, counts):
    """What the traced orders read: rows of the dense one are the first expert's tokens."""
    table = HostTable.of(counts, config.block_m)
    return np.array([[table.tokens(e), table.first_block(e)] for e in range(experts_of(config) + 1)], np.int32).ravel()


def integers(block, family):
    return [int(getattr(block, name)) for name in family.block]


def random_positions(family, config, order, rng):
    """Of all steps, valid, at the end of their step or past it; not those of Linear2 of no expert, who has no place in the table."""
    found = []
    while len(found) < STATES:
        position = Scheduler.start(order, 0, 7)
        for _ in range(rng.randrange(order.num_steps)):
            position = position.advance()
        total = position.sizes.total
        edges = (0, max(total - 1, 0), total, total + 1, rng.randrange(2 * total + 10), rng.randrange(total + 1))
        position = replace(position, local=rng.choice(edges))
        if family is not FUSED or position.step >= config.lookahead or position.local < position.sizes.fc1:
            found.append(position)
    return found


@sample(
    "FusedMoeOrder-Sm100Config-192",
    "FusedMoeOrder-Sm90Config-8",
    "RingOrder-Sm90Config-128",
    "DenseOrder-GemmPlan-96",
    "GroupedOrder-GemmPlan-128",
)
@pytest.mark.parametrize(("family", "config"), CASES, ids=label)
def test_traced_step_equals_host_step(traced, family, config):
    rng = random.Random(config.block_m)
    counts = random_counts(config, rng)
    positions = random_positions(family, config, host_order(family, config, counts), rng)
    states = np.array([state_of(p, family.sizes) for p in positions], np.int32)
    out = np.zeros((STATES, 1 + len(family.block) + 2 * states.shape[1]), np.int32)
    traced[0](family, config, tensor(words_of(config, counts)), tensor(states), tensor(out), STATES)
    for position, row in zip(positions, out.tolist(), strict=True):
        expected = [int(position.invalid()), *integers(position.block(), family)]
        for moved in (position.advance(), position.skip()):
            expected += state_of(moved, family.sizes)
        assert row == expected, position


@sample(
    "FusedMoeOrder-Sm100Config-192",
    "FusedMoeOrder-Sm90Config-8",
    "RingOrder-Sm90Config-128",
    "DenseOrder-GemmPlan-96",
    "GroupedOrder-GemmPlan-128",
)
@pytest.mark.parametrize(("family", "config"), CASES, ids=label)
def test_traced_walk_equals_host_walk(traced, family, config):
    """Whole walks, of one walker alone and of some among several."""
    rng = random.Random(config.block_m)
    experts = experts_of(config)
    for counts in (random_counts(config, rng), [0] * experts, [1] * experts):
        order, words = host_order(family, config, counts), tensor(words_of(config, counts))
        for first, stride in ((0, 1), (0, 6), (5, 6), (131, 264)):
            expected = [integers(block, family) for block in Scheduler.blocks(order, first, stride)]
            out = np.zeros((len(expected) + 2, len(family.block)), np.int32)
            traced[1](family, config, stride, words, tensor(out), first, len(expected))
            assert out[:-2].tolist() == expected
            end = dict(zip(family.block, out[-2].tolist(), strict=True))
            assert out[-1, 0] == 0 and end["valid_m"] <= 0 and end["expert"] == (1 if family is DENSE else experts)


def test_configs_cover_powers_of_two_and_other_divisors():
    assert {c.block_m for c in CONFIGS} < {t.block_m for t in TIERS} | set(BLOCK_M)
    assert {c.fc2_n_blocks for c in CONFIGS} == {2, 7, 16, 28} and {c.fc1_n_blocks for c in CONFIGS} == {3, 2, 16, 24}
