"""What must hold of a layout object, as functions of the object: the tests apply them to real ones, the mutation tests to broken ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import prod

import numpy as np

from megamoe_dsl.blocks.sm100.pair_stage import PairStage
from megamoe_dsl.hardware.cta_pair import TmemPlan
from megamoe_dsl.kernels.moe.layouts.smem_plan import SmemPlan
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.region import MBarrier, Placement, Region
from megamoe_dsl.problem import Problem

SMEM_BYTES = 232448
MAIN = {"weights", "tokens", "cd", "sfa", "sfb", "pull", "expert_count"}
COMBINE = {"combine_slots"}


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two half-open intervals share a point."""
    return max(a[0], b[0]) < min(a[1], b[1])


# --- regions
def coexist(one: Placement, other: Placement) -> bool:
    """Whether both fields can be live at the same time: they differ in no overlay's alternative."""
    mine = dict(one.lifetimes)
    return all(mine.get(overlay, choice) == choice for overlay, choice in other.lifetimes)


def check_region(region: Region) -> None:
    """Fields are in bounds and aligned; fields that can be live together share no byte; the size covers the alignment."""
    assert region.size % region.alignment == 0
    for placement in region:
        assert 0 <= placement.offset <= placement.end <= region.size, placement
        assert placement.offset % placement.field.alignment == 0, placement
        assert region.alignment % placement.field.alignment == 0, placement
        assert coexist(placement, placement)
    for a, b in combinations(region, 2):
        assert coexist(a, b) == coexist(b, a)
        if coexist(a, b):
            assert not overlap((a.offset, a.end), (b.offset, b.end)), (a, b)


def check_offsets(region: Region, name: str) -> None:
    """Elements of a (small) field lie where a C-contiguous numpy array at the field's offset has them: disjoint and inside the field."""
    placement = region[name]
    itemsize = placement.field.dtype.itemsize
    model = np.empty(placement.field.shape, f"V{itemsize}")
    seen = set()
    for index in product(*(range(n) for n in model.shape)):
        offset = region.offset(name, *index)
        assert offset == placement.offset + sum(i * s for i, s in zip(index, model.strides, strict=True)), (name, index)
        assert placement.offset <= offset <= placement.end - itemsize and (offset - placement.offset) % itemsize == 0
        assert region.address(1 << 40, name, *index) == (1 << 40) + offset
        seen.add(offset)
    assert len(seen) == prod(model.shape)


def check_views(region: Region) -> None:
    """Every torch view has the field's shape, element size, strides and offset.  Needs no memory: the buffer is on the meta device."""
    import torch

    buffer = torch.empty(region.size, dtype=torch.uint8, device="meta")
    for placement in region:
        view, field = region.view(buffer, placement.field.name), placement.field
        assert tuple(view.shape) == field.shape
        assert view.element_size() == field.dtype.itemsize
        assert view.storage_offset() * field.dtype.itemsize == placement.offset
        # Strides along dimensions of one element are never applied, nor any of an empty field.
        for length, in_elements, in_bytes in zip(view.shape, view.stride(), field.strides, strict=True):
            assert length == 1 or not view.numel() or in_elements * field.dtype.itemsize == in_bytes


# --- pool
def check_pool(problem: Problem, counts: Sequence[int], block_m: int, capacity: int, first: Sequence[int]) -> None:
    """`first` gives every expert whole blocks of its own, in order, inside a pool of `capacity` rows."""
    assert len(first) == problem.experts_per_rank + 1 and first[0] == 0
    assert capacity % block_m == 0 and first[-1] * block_m <= capacity
    owner: dict[int, int] = {}
    for expert, tokens in enumerate(counts):
        blocks = {first[expert] + row // block_m for row in (*range(0, tokens, block_m), *([tokens - 1] if tokens else []))}
        assert first[expert + 1] - first[expert] == len(blocks)
        for block in blocks:
            assert owner.setdefault(block, expert) == expert and first[expert] <= block < first[expert + 1]


# --- scale factors and swizzles
def check_sf_order(order: Callable[[int], int], inverse: Callable[[int], int], atoms: int = 3) -> None:
    """SM100_FACTS: in a 512-byte atom, byte k of row m is at (m % 32) * 16 + (m / 32) * 4 + k; atoms follow each other."""
    for row in range(128 * atoms):
        word, m = order(row), row % 128
        assert word * 4 == row // 128 * 512 + (m % 32) * 16 + m // 32 * 4, row
        assert inverse(word) == row
    for atom in range(atoms):
        rows = range(128 * atom, 128 * (atom + 1))
        assert {order(row) for row in rows} == set(rows)


def check_swizzle(swizzle: Callable[[int], int], span: int) -> None:
    """An involution and a permutation of its 8-row atom that moves whole 16-byte chunks and never leaves their row of `span` bytes."""
    atom = 8 * max(span, 16)
    for base in (0, atom, 5 * atom):
        moved = [swizzle(base + byte) for byte in range(atom)]
        assert sorted(moved) == list(range(base, base + atom))
        for byte, address in enumerate(moved, base):
            assert swizzle(address) == byte
            assert address % 16 == byte % 16 and address // max(span, 16) == byte // max(span, 16)


def bank_groups(swizzle: Callable[[int], int], pitch: int, column: int) -> int:
    """Distinct 16-byte bank groups (of 8) that chunk `column` of 8 rows `pitch` bytes apart falls into; 8 is free of conflicts."""
    return len({swizzle(row * pitch + column * 16) // 16 % 8 for row in range(8)})


# --- shared memory, tensor memory, barriers
def check_smem_plan(config: Sm100Config, plan: SmemPlan, stage: PairStage) -> None:
    """Every field has the size that the tile asks for and the alignment that TMA and tcgen05 ask for; combine overlaps nothing but main."""
    region = plan.region
    check_region(region)
    names = {p.field.name for p in region}
    always = names - MAIN - COMBINE
    problem = config.problem
    of_scales = {"sfa", "sfb"} if problem.formats.scaled else set()
    assert names & {"sfa", "sfb"} == of_scales and names | {"sfa", "sfb"} >= MAIN | COMBINE
    for a, b in combinations(names, 2):
        spans = [(region[n].offset, region[n].end) for n in (a, b)]
        may_overlap = {a, b} & MAIN and {a, b} & COMBINE
        assert may_overlap or not overlap(*spans), (a, b)
    assert not any(region[name].lifetimes for name in always)

    stages, groups, warps, block_m = config.num_stages, config.epilogue_warpgroups, 4 * config.epilogue_warpgroups, config.block_m
    k, bits = config.k_block.channels, problem.formats.activations.element_bits
    span = k * bits // 8  # of a row in a stage, of weights too: of E4M3 tokens theirs are unpacked
    words = k // (64 if problem.recipe == "nvfp4xnvfp4" else 128)
    sf_bytes = words * 4 * (-(-block_m // 128) * 128)
    store_tile = max(2 * config.store_block_m * config.fc1_row_bytes, config.store_block_m * 128 * 2)
    for name, count, least, alignment in [
        ("weights", stages, 128 * span, 1024),
        ("tokens", stages, block_m // 2 * span, 1024),
        ("cd", groups, store_tile, 1024),
        *[(name, stages, least, 128) for name, least in (("sfa", sf_bytes), ("sfb", words * 512)) if name in of_scales],
        ("pull", 4, problem.hidden * bits // 8, 128),
        ("expert_count", problem.num_experts, 4, 4),
        ("combine_slots", warps, plan.combine.slots * plan.combine.slot_bytes, 16 if plan.combine.row.scaled else 128),
        ("amax", groups, 4 * config.store_block_m * 4 if of_scales and problem.recipe != "nvfp4xnvfp4" else 0, 16),
        ("expert_table", problem.experts_per_rank + 1, 8, 8),
    ]:
        assert region[name].field.shape[0] == count, name
        offsets = [region.offset(name, i) for i in range(count)]
        assert all(offset % alignment == 0 for offset in offsets), name
        assert all(b - a >= least for a, b in zip(offsets, [*offsets[1:], region[name].end], strict=True)), name
    for row in plan.barriers:
        placement = region[f"{row.name}_barrier"]
        assert placement.offset % 8 == 0 and placement.field.num_bytes == 8 * row.count
    assert stage.token_transaction == block_m // 2 * span + sf_bytes
    assert stage.weight_transaction == 128 * k * config.k_block.weight_bits // 8 + words * 512


def check_deepest(config: Sm100Config, stages: int) -> None:
    """`stages` fits and one more does not (plan sizes recomputed field by field, from the region of a plan of that depth)."""
    ends = [max(p.end for p in config.smem_plan(n).region) for n in (stages, stages + 1)]
    assert ends[0] <= SMEM_BYTES < -(-ends[1] // 1024) * 1024


def check_tmem_plan(plan: TmemPlan) -> None:
    """Accumulators and scales have columns of their own; the allocation is a power of two that tcgen05.alloc takes."""
    firsts = [plan.accumulator(i) + consumer * plan.block_m for i in range(plan.accumulators) for consumer in range(plan.consumers)]
    spans = [(first, first + plan.block_m) for first in firsts]
    if plan.scaled:
        spans += [(plan.sfa, plan.sfa + 4 * -(-plan.block_m // 128)), (plan.sfb, plan.sfb + 4 * plan.consumers)]
    assert not any(overlap(a, b) for a, b in combinations(spans, 2)), spans
    assert all(0 <= start < end <= plan.allocated and start % 4 == 0 for start, end in spans), spans
    assert plan.used == max(end for _, end in spans)
    assert plan.allocated in (32, 64, 128, 256, 512)
    assert plan.allocated == 32 or plan.allocated < 2 * plan.used


def check_barrier_table(rows: Sequence[MBarrier], *, num_stages: int, dispatch_warps: int, epilogue_warpgroups: int) -> None:
    """Counts recomputed from the roles of the two CTAs of a pair; of two epilogue warpgroups each reads one of the two work tiles."""
    ctas, accumulators, work_tiles, warps_per_group = 2, 2, 2, 4
    token_loader = weight_loader = mma = mma_commit = scheduler = dispatch_warp = epilogue_warp = 1
    facts = {  # name: (barriers, arrivals, only the leader's are used)
        "full": (num_stages, (token_loader + weight_loader) * ctas, True),
        "empty": (num_stages, mma_commit, False),
        "acc_full": (accumulators, mma_commit, False),
        "acc_empty": (accumulators, warps_per_group * epilogue_warp * ctas, True),
        "counts": (1, 32 * scheduler, False),
        "work_tile_full": (work_tiles, scheduler, False),
        "work_tile_empty": (work_tiles, 32 * ((token_loader + weight_loader + warps_per_group * epilogue_warp) * ctas + mma), True),
        "pull": (dispatch_warps, dispatch_warp, False),
        "combine": (2 * warps_per_group * epilogue_warpgroups, epilogue_warp, False),
    }
    assert {row.name: (row.count, row.arrivals, row.leader_only) for row in rows} == facts
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert 1 <= row.arrivals < 1 << 20  # PTX ISA, mbarrier.init
        assert row.who and row.waits
    assert {row.name for row in rows if row.transaction} == {"full", "work_tile_full", "pull", "combine"}
