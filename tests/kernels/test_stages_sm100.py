"""The unfused layer on simulated ranks of SM100: y of every launch equals the fused kernel's to the bit, race detector on.

A sample runs with the suite, all of it with

    python -m pytest -m "sweep or faults or not sweep" tests/kernels/test_stages_sm100.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fault_runs import sign_of
from fault_trial import assert_fault_is_noticed, each_fault
from kernel_faults import gone, last_number_plus
from mega_moe_runs import config, problem
from pair_gemm_faults import ANY, PAIR_FAULTS
from sm90_faults import NOT_ORDERED, Sm90Fault, at
from stage_faults import COUNTER
from stage_runs import prove_equal, prove_turns, stages_of, unfused_layer

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.sm100.choose import tiers_of
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from sweep import rarely

RECIPES = ("fp8xfp4", "mxf4xmxf4")
NAMES = [stage.name for stage in STAGES]
SWEEP = pytest.mark.sweep


def layer_problem(recipe: str, tokens: int, **changes: Any) -> Problem:
    return problem(tokens, **{"num_experts": 4, "recipe": recipe, **changes})


@pytest.mark.parametrize("recipe", ["mxf4xmxf4", rarely("fp8xfp4"), rarely("mxfp8xmxfp8")])
def test_two_ranks(recipe: str) -> None:
    """Masked slots, most tokens for the same few experts, a rank without tokens, all slots masked; random data."""
    moe = layer_problem(recipe, 20)
    masked, skewed = random_case(moe, (20, 9), 1, mask=0.3, exact=False), random_case(moe, (0, 20), 2, skew=True, exact=False)
    prove_equal(config(moe, block_m=32, num_sms=2), [masked, skewed, random_case(moe, (3, 2), 3, mask=1.0)])


TILES = [(recipe, tier.block_m) for recipe in RECIPES for tier in tiers_of(layer_problem(recipe, 8))]


@pytest.mark.sweep
@pytest.mark.parametrize(("recipe", "block_m"), [one if one == ("mxf4xmxf4", 96) else rarely(*one) for one in TILES])
def test_every_tile(recipe: str, block_m: int) -> None:
    """An expert with a full and a partial block, a ring that wraps; scales of two atoms where a tile has more than 128 tokens."""
    moe = layer_problem(recipe, block_m + 9, num_ranks=1, num_experts=2, topk=1, hidden=512, intermediate=256, activation_clamp=1.0)
    cases = [random_case(moe, (block_m + 9,), block_m, target_expert=1, exact=False), random_case(moe, (0,), 5)]
    prove_equal(config(moe, block_m=block_m, num_sms=2), cases)


@SWEEP
@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_in_parts(recipe: str) -> None:
    """Of a row several warps send a part, and two do SwiGLU, the second with less than a warp has room for."""
    moe = layer_problem(recipe, 3, num_ranks=1, hidden=2304, intermediate=640, num_experts=2, topk=1)
    prove_equal(config(moe, block_m=32, num_sms=2), [random_case(moe, (3,), 10, exact=False)])


@SWEEP
def test_results_that_travel_as_e4m3() -> None:
    """What a linear stage leaves for the next is BF16 all the same."""
    moe = layer_problem("fp8xfp4", 20, combine="e4m3")
    prove_equal(config(moe, block_m=32, num_sms=2), [random_case(moe, (20, 9), 1, mask=0.3, exact=False)])


@SWEEP
def test_calls_without_a_pause() -> None:
    """A rank begins its next call when its last has ended, whatever the other ranks do; the reference's bits."""
    moe = layer_problem("fp8xfp4", 12)
    case = random_case(moe, (12, 7), 8, mask=0.1)
    layer = unfused_layer(stages_of(config(moe, block_m=16, num_sms=2)), case)
    ranks, report = layer.stream(case, [(12, 7), (0, 3), (12, 0)])
    assert report.findings == [] and [one.unequal for one in ranks] == [0] * len(ranks)
    layer.check_workspace()


@SWEEP
def test_fused_and_unfused_calls_take_turns_on_one_buffer() -> None:
    """Counters of the workspace stand after either as the other expects."""
    moe = layer_problem("fp8xfp4", 6, num_ranks=1)
    case, kernel = random_case(moe, (6,), 9), config(moe, block_m=16, num_sms=2)
    prove_turns(kernel, case)


@pytest.mark.parametrize("recipe", RECIPES)
def test_stages_follow_the_fused_choice(recipe: str) -> None:
    """Tile, passes, K of a stage and grid are the fused kernel's, rings the stages' own; pairs only where tensor cores multiply."""
    moe = PRESETS["flash"].problem(8192, recipe=recipe)
    for tokens in (1, 512, 8192):
        fused = choose(moe, Target.typical("sm_100a"), tokens)
        stages: list[Any] = list(stage_configs(fused))
        for name in ("block_m", "num_sms", "store_block_m", "epilogue_warpgroups", "block_k"):
            assert {getattr(one, name) for one in stages} == {getattr(fused, name)}
        assert all(one.num_stages >= fused.num_stages for one in stages[1::2])
        assert [one.cluster for one in stages] == [1, 2, 1, 2, 1]


FITS = [(recipe, tokens, name) for recipe in RECIPES for tokens in (8, 8192) for name in NAMES]


@pytest.mark.parametrize(("recipe", "tokens", "name"), [one if one == ("fp8xfp4", 8192, "moe_fc1") else rarely(*one) for one in FITS])
def test_stage_fits_the_chip(recipe: str, tokens: int, name: str) -> None:
    """No spills, every role within its budget, SMEM within capacity, no load overtaken."""
    fused = choose(PRESETS["pro"].problem(8192, recipe=recipe), Target.typical("sm_100a"), tokens)
    stage = stage_configs(fused)[NAMES.index(name)]
    compile_fitting(f"pro, {name}", stage, SMEM_BYTES)
    linear = name in ("moe_fc1", "moe_fc2")
    assert dict(stage.registers) == ({"loader": 48, "epilogue": 208} if linear else {})
    assert bool(stage.tmem) == linear


# --- faults
LINEAR = (
    *(fault for fault in PAIR_FAULTS if "counter" not in fault.name and "warp less" not in fault.name),
    at("accumulator given back by a warp less", r"mbarrier\.init[^;]*, 8;", 0, last_number_plus(-1), ANY),
)
SWIGLU = (
    at("tiles of Linear2 not counted anew", COUNTER, -1, gone, ANY),
    at("scale not stored", r"st\.global\.b8[^;]*;", -1, gone, NOT_ORDERED),
    at("outputs not stored", r"st\.global\.v4\.b32[^;]*;", -1, gone, NOT_ORDERED),
)
CASES: tuple[tuple[Sm90Fault, str], ...] = (*((one, "moe_swiglu") for one in SWIGLU), *((one, "moe_fc1") for one in LINEAR))
TOKENS = (70,)


@cache
def subject() -> tuple[list[Artifact], Case]:
    """Pairs that work on several tiles in two passes, whose rings wrap, and a workspace that is used again."""
    moe = layer_problem("fp8xfp4", max(TOKENS), num_ranks=1, num_experts=2, hidden=512, intermediate=256)
    return stages_of(config(moe, block_m=64, num_sms=4), num_stages=2), random_case(moe, TOKENS, 0)


def how_noticed(fault: Sm90Fault | None, name: str | None, seed: int = 0) -> str | None:
    """The first sign of a fault of a stage (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    stages, case = subject()
    if fault is not None:
        stages = [replace(one, ptx=fault.apply(one.ptx)) if one.kernel.name == name else one for one in stages]
        assert stages != subject()[0]
    return sign_of(stages, case, (TOKENS, (32,)), seed, unfused_layer)


@SWEEP
def test_the_stages_themselves_show_no_sign() -> None:
    assert how_noticed(None, None) is None


@each_fault(CASES, sample=())
def test_fault_is_noticed(fault: Sm90Fault, subject: str) -> None:
    assert_fault_is_noticed(how_noticed, fault, subject)
