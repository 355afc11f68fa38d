"""Broken layouts are caught: each mutation breaks one thing, the property check must fail."""

from dataclasses import replace

import pytest
from hardware_layouts import utccp_row_inverse
from layout_properties import (
    bank_groups,
    check_barrier_table,
    check_deepest,
    check_offsets,
    check_pool,
    check_region,
    check_sf_order,
    check_smem_plan,
    check_swizzle,
    check_tmem_plan,
    check_views,
)

from megamoe_dsl.blocks.sm100.pair_stage import PairStage
from megamoe_dsl.hardware.cta_pair import TmemPlan
from megamoe_dsl.hardware.operand_tile import SW128, utccp_row
from megamoe_dsl.kernels.moe.layouts.smem_plan import SmemPlan
from megamoe_dsl.kernels.moe.layouts.symmetric import pool_tokens
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.region import U8, U32, U64, Field, Placement, Region
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import HostTable

caught = pytest.raises(AssertionError)
CONFIG = Sm100Config(
    Problem(7168, 2048, 256, 6, num_ranks=8), 128, lookahead=8, num_sms=148, store_block_m=32, epilogue_warpgroups=2, num_stages=7
)
FACTS = {"num_stages": 7, "dispatch_warps": 4, "epilogue_warpgroups": 2}


# --- regions
class WrongStrides(Field):
    """Column-major, inner stride short by one element, or one element long: by name."""

    @property
    def strides(self):
        right = Field.strides.fget(self)
        return {"column": right[::-1], "short": (right[0] - 4, *right[1:]), "long": (right[0] + 4, *right[1:])}[self.name]


@pytest.mark.parametrize("name", ["column", "short", "long"])
def test_broken_stride(name):
    region = Region.stack("r", WrongStrides(name, (3, 2), U32), Field("next", (4,), U32))
    with caught:
        check_offsets(region, name)
    with caught:
        check_views(region)


def placed(*parts, size=64, alignment=8):
    return Region("r", tuple(Placement(*part) for part in parts), size, alignment)


@pytest.mark.parametrize(
    "region",
    [
        placed((Field("a", (3,), U32), 0), (Field("b", (2,), U32), 8)),
        placed((Field("a", (1,), U64), 4)),
        placed((Field("a", (2,), U8, 16), 16), alignment=8),
        placed((Field("a", (3,), U32), 56)),
        placed((Field("a", (3,), U32), 0), size=60),
        placed((Field("a", (3,), U32), 0, (("phase", "main"),)), (Field("b", (1,), U32), 4, (("phase", "main"),))),
        placed((Field("a", (3,), U32), 0, (("phase", "main"),)), (Field("b", (1,), U32), 4)),
    ],
    ids=["alias", "misaligned", "region alignment", "out of bounds", "size", "alias in one alternative", "alias of what stays"],
)
def test_broken_placement(region):
    with caught:
        check_region(region)


def test_a_sound_placement_passes():
    main, combine = (("phase", "main"),), (("phase", "combine"),)
    check_region(placed((Field("a", (3,), U32), 0, main), (Field("b", (1,), U64), 8, combine), (Field("c", (1,), U8), 16)))


# --- shared memory
def broken_plan(change: str) -> SmemPlan:
    """A plan with one field changed or moved."""
    region = CONFIG.smem.region
    names = {"count": "combine_barrier", "align": "tokens", "alias": "amax", "drop": "sfb", "halve": "weights", "lifetime": "amax"}
    place = region[names[change]]
    field = place.field
    changed = {
        "count": lambda: replace(place, field=replace(field, shape=(field.shape[0] - 1,))),
        "align": lambda: replace(place, offset=place.offset + 512),
        "alias": lambda: replace(place, offset=region["sfa"].offset),
        "drop": lambda: replace(place, field=replace(field, shape=(field.shape[0] - 1, *field.shape[1:]))),
        "halve": lambda: replace(place, field=replace(field, shape=(field.shape[0], field.shape[1] // 2))),
        "lifetime": lambda: replace(place, lifetimes=(("phase", "combine"),)),
    }[change]()
    places = tuple(changed if p is place else p for p in region)
    return replace(CONFIG.smem, region=Region("smem", places, region.size, region.alignment))


@pytest.mark.parametrize("change", ["count", "align", "alias", "drop", "halve", "lifetime"])
def test_broken_smem_plan(change):
    check_smem_plan(CONFIG, CONFIG.smem, CONFIG.pair_stage)
    with caught:
        check_smem_plan(CONFIG, broken_plan(change), CONFIG.pair_stage)


class WrongStage(PairStage):
    @property
    def token_transaction(self):
        return super().token_transaction - 512


def test_broken_transaction():
    with caught:
        check_smem_plan(CONFIG, CONFIG.smem, WrongStage(**vars(CONFIG.pair_stage)))


@pytest.mark.parametrize("stages", [6, 8])
def test_ring_too_shallow_or_too_deep(stages):
    check_deepest(CONFIG, 7)
    with caught:
        check_deepest(CONFIG, stages)


# --- tensor memory
class ShiftedScales(TmemPlan):
    @property
    def sfa(self):
        return super().sfa - 4


class NarrowScales(TmemPlan):
    @property
    def sfa_columns(self):
        return 4


class OddAllocation(TmemPlan):
    @property
    def allocated(self):
        return 2 * super().allocated


@pytest.mark.parametrize(("plan", "block_m"), [(ShiftedScales, 128), (NarrowScales, 192), (OddAllocation, 64)])
def test_broken_tmem_plan(plan, block_m):
    check_tmem_plan(TmemPlan(block_m))
    with caught:
        check_tmem_plan(plan(block_m))


# --- barriers
@pytest.mark.parametrize("name", [row.name for row in CONFIG.smem.barriers])
@pytest.mark.parametrize("change", ["count", "arrivals", "leader_only", "missing"])
def test_broken_barrier_table(name, change):
    rows = CONFIG.smem.barriers
    check_barrier_table(rows, **FACTS)
    mutate = {
        "count": lambda row: [replace(row, count=row.count + 1)],
        "arrivals": lambda row: [replace(row, arrivals=row.arrivals - 1 or 2)],
        "leader_only": lambda row: [replace(row, leader_only=not row.leader_only)],
        "missing": lambda row: [],
    }[change]
    with caught:
        check_barrier_table([new for row in rows for new in (mutate(row) if row.name == name else [row])], **FACTS)


# --- pool, orders
def unpadded(counts, block_m):
    """Experts share blocks."""
    return [sum(counts[:e]) // block_m for e in range(len(counts) + 1)]


def one_block_each(counts, block_m):
    return list(range(len(counts) + 1))


@pytest.mark.parametrize("first_blocks", [unpadded, one_block_each], ids=["unpadded", "one block each"])
def test_broken_pool(first_blocks):
    problem, counts = Problem(256, 128, 4, 2, max_tokens_per_rank=64), [17, 5, 0, 40]
    check_pool(problem, counts, 16, pool_tokens(problem), HostTable.of(counts, 16).first)
    with caught:
        check_pool(problem, counts, 16, pool_tokens(problem), first_blocks(counts, 16))


def test_pool_without_room_for_padding():
    problem, counts = Problem(256, 128, 4, 4, max_tokens_per_rank=96), [96, 96, 96, 96]
    check_pool(problem, counts, 192, pool_tokens(problem), HostTable.of(counts, 192).first)
    with caught:
        check_pool(problem, counts, 192, 384, HostTable.of(counts, 192).first)


@pytest.mark.parametrize(
    ("order", "inverse"),
    [
        (lambda row: row, lambda word: word),
        (utccp_row_inverse, utccp_row),
        (lambda row: utccp_row(row % 128), utccp_row_inverse),
        (utccp_row, utccp_row),
    ],
    ids=["identity", "transposed back", "atoms aliased", "wrong inverse"],
)
def test_broken_scale_order(order, inverse):
    with caught:
        check_sf_order(order, inverse)


@pytest.mark.parametrize(
    "swizzle",
    [
        lambda a: a ^ (((a >> 7) & 7) << 3),
        lambda a: a ^ (((a >> 6) & 7) << 4),
        lambda a: a ^ (((a >> 7) & 7) << 5),
        lambda a: a | (((a >> 7) & 7) << 4),
    ],
    ids=["splits chunks", "reads its own bits", "leaves the row", "not injective"],
)
def test_broken_swizzle(swizzle):
    check_swizzle(SW128, 128)
    with caught:
        check_swizzle(swizzle, 128)


def test_a_weak_swizzle_has_bank_conflicts():
    """A permutation can be sound and still useless: shifted by one row bit it reaches half of the banks."""
    assert bank_groups(SW128, 128, 0) == 8
    assert bank_groups(lambda a: a ^ (((a >> 8) & 7) << 4), 128, 0) < 8
