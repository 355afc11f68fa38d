"""SMEM plan, TMEM plan and barrier table of any configuration."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import check_barrier_table, check_deepest, check_smem_plan, check_tmem_plan

from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.hardware.cta_pair import TmemPlan
from megamoe_dsl.kernels.moe.layouts.smem_plan import BUDGET, LARGEST_CHUNK, CombinePlan, CombineRow, NamedBarrier
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.layouts.region import deepest_ring, most_that_fit
from megamoe_dsl.problem import Problem
from megamoe_dsl.recipe import COMBINE
from megamoe_dsl.testing import configs_sm100

CONFIG = Sm100Config(
    Problem(7168, 2048, 256, 6, num_ranks=8), 128, lookahead=8, num_sms=148, store_block_m=32, epilogue_warpgroups=2, num_stages=7
)


@settings(max_examples=80)
@given(configs_sm100())
def test_smem_plan(config):
    check_smem_plan(config, config.smem, config.pair_stage)
    assert config.smem.region.size <= SMEM_BYTES


@settings(max_examples=80)
@given(configs_sm100(), st.integers(SMEM_BYTES // 2, SMEM_BYTES))
def test_max_stages_is_the_deepest_ring_that_fits(config, capacity):
    deepest = most_that_fit(lambda stages: config.smem_plan(stages).region.size, capacity)
    assert config.smem_plan(deepest + 1).region.size > capacity
    assert deepest == 0 or config.smem_plan(deepest).region.size <= capacity
    check_deepest(config, deepest_ring(config))


def test_max_stages_when_nothing_fits():
    assert most_that_fit(lambda stages: CONFIG.smem_plan(stages).region.size, 1024) == 0


def test_smem_plan_grows_with_its_stages():
    sizes = [CONFIG.smem_plan(n).region.size for n in range(7, 12)]  # where the stages take more than combine
    assert {b - a for a, b in pairwise(sizes)} <= {24576 + 1024, 24576 + 2048}  # operands, scales, barriers, rounding


@pytest.mark.parametrize(
    ("hidden", "topk", "chunk", "sets"),
    [
        (256, 2, 256, 2),
        (2048, 6, 1024, 2),
        (2304, 6, 768, 2),
        (4096, 6, 1024, 2),
        (7168, 6, 1024, 2),
        (2816, 6, 256, 2),
        (4096, 32, 256, 1),
    ],
)
def test_combine_plan(hidden, topk, chunk, sets):
    plan = CombinePlan(CombineRow(hidden), topk, 8)
    assert (plan.chunk, plan.sets, plan.pieces) == (chunk, sets, hidden // chunk)


@settings(max_examples=80)
@given(st.integers(1, 200).map(lambda n: 256 * n), st.integers(1, 32), st.sampled_from((4, 8)), st.sampled_from(list(COMBINE.values())))
def test_combine_plan_fits_and_takes_the_largest_share(hidden, topk, warps, results):
    plan = CombinePlan(CombineRow(hidden, results), topk, warps)
    assert warps * plan.slots * plan.slot_bytes <= BUDGET and plan.chunk * plan.pieces == hidden
    larger = [c for c in range(plan.chunk + 256, LARGEST_CHUNK + 1, 256) if hidden % c == 0]
    value_bytes = 1 if results.scale else 2
    assert all(warps * plan.slots * (value_bytes * c + plan.row.scale_bytes) > BUDGET for c in larger)
    assert plan.sum_slots * plan.slot_bytes >= plan.chunk_bytes == 2 * plan.chunk  # y is BF16
    assert all(amount % 16 == 0 for amount in (plan.part_bytes, plan.slot_bytes, plan.row.first_scale, plan.row.scale_bytes))


@settings(max_examples=80)
@given(configs_sm100())
def test_transactions_are_what_the_boxes_bring(config):
    """Per CTA and stage: half of the tile's tokens, all their scale words, 128 weight rows as they are in memory and theirs."""
    plan, k = config.smem, config.block_k
    token_bytes, weight_bytes = {
        "fp8xfp4": (k, k // 2),
        "mxf4xmxf4": (k // 2, k // 2),
        "mxfp8xmxfp8": (k, k),
        "nvfp4xnvfp4": (k // 2, k // 2),
        "bf16xbf16": (2 * k, 2 * k),
    }[config.problem.recipe]
    scaled, words = config.problem.formats.scaled, k // (64 if config.problem.recipe == "nvfp4xnvfp4" else 128)
    assert config.pair_stage.token_transaction == config.block_m // 2 * token_bytes + words * 4 * config.sf_block_m
    assert config.pair_stage.weight_transaction == 128 * weight_bytes + words * 4 * 128
    maps = config.tensor_maps(0, dict.fromkeys(("fc1", "fc1_sf", "fc2", "fc2_sf"), 0))
    for phase in (0, 4):
        brought = [one.transaction_bytes if scaled or place % 2 == 0 else 0 for place, one in enumerate(maps[phase : phase + 4])]
        assert [sum(brought[:2]), sum(brought[2:])] == [config.pair_stage.token_transaction, config.pair_stage.weight_transaction]
        fields = {"tokens": 0, "weights": 2, **({"sfa": 1, "sfb": 3} if scaled else {})}
        assert all(maps[phase + place].box_bytes <= plan.region[name].field.strides[0] for name, place in fields.items())
    assert 2 * (config.pair_stage.token_transaction + config.pair_stage.weight_transaction) < 1 << 20  # PTX ISA, mbarrier tx-count


@pytest.mark.parametrize("block_m", [tier.block_m for tier in TIERS])
def test_tmem_plan(block_m):
    check_tmem_plan(TmemPlan(block_m))


def test_tmem_columns_of_the_largest_tile():
    plan = TmemPlan(192)
    assert (plan.accumulator(1), plan.sfa, plan.sfb, plan.used, plan.allocated) == (192, 384, 392, 396, 512)


@pytest.mark.parametrize(("block_m", "consumers", "accumulators"), [(64, 2, 2), (128, 2, 1), (192, 2, 1), (256, 1, 1)])
def test_tmem_plan_of_consumers(block_m, consumers, accumulators):
    check_tmem_plan(TmemPlan(block_m, consumers, accumulators))


@pytest.mark.parametrize(("block_m", "consumers", "accumulators"), [(32, 1, 2), (192, 1, 2), (256, 1, 2), (128, 2, 2), (256, 2, 1)])
def test_tmem_plan_without_scales(block_m, consumers, accumulators):
    """All columns are those of sums."""
    plan = TmemPlan(block_m, consumers, accumulators, scaled=False)
    check_tmem_plan(plan)
    assert plan.used == block_m * consumers * accumulators and len(plan.fields) == accumulators


def test_tmem_overflow():
    with pytest.raises(ValueError, match=r"block_m = 256: needs 524 TMEM columns, at most 512 exist"):
        _ = TmemPlan(256).allocated


@settings(max_examples=80)
@given(configs_sm100())
def test_plan_has_the_barriers_of_its_configuration(config):
    groups = config.epilogue_warpgroups
    check_barrier_table(config.smem.barriers, num_stages=config.num_stages, dispatch_warps=4, epilogue_warpgroups=groups)
    words = sum(p.field.num_bytes for p in config.smem.region if p.field.name.endswith("_barrier"))
    assert words == 8 * (2 * config.num_stages + 4 + 1 + 4 + 4 + 8 * groups)


def test_named_barriers_are_distinct_and_exist():
    ids = [value for name, value in vars(NamedBarrier).items() if name.isupper()]
    ids.append(NamedBarrier.EPILOGUE_GROUP + 1)
    assert len(set(ids)) == len(ids) and all(1 <= i <= 15 for i in ids)
