"""The SM100 kernel with E4M3 weights and tokens, both with UE8M0 scales of 32 channels (mxfp8xmxfp8), on simulated ranks.

A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_mxfp8.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mega_moe_runs import config, prove_tile
from mega_moe_runs import problem as any_problem

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90, SMEM_BYTES
from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.hardware.tensor_map import TensorMapDtype
from megamoe_dsl.kernels.moe.sm100.choose import tiers_of
from megamoe_dsl.kernels.moe.sm100.memory_plan import TABLE_MAPS
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, inverse_transform_weights, transform_weights
from sweep import rarely
from violations import violations

RECIPE = "mxfp8xmxfp8"


def problem(tokens: int = 24, **changes: Any) -> Problem:
    return any_problem(tokens, **{"num_experts": 4, "recipe": RECIPE, **changes})


TILES = [tier.block_m for tier in tiers_of(problem())]


@pytest.mark.parametrize("block_m", [64 if tile == 64 else rarely(tile) for tile in TILES])
def test_every_tile(block_m: int) -> None:
    prove_tile(problem(block_m + 5, hidden=512, intermediate=256), block_m)


def test_exact_data_has_the_same_sums_in_any_precision() -> None:
    case = random_case(problem(16), (16, 7), 0, mask=0.1)
    result, rough = case.reference(), case.reference(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(result.y, rough.y, strict=True))
    low_bits = case.weights[0].fc2.view(torch.uint8) & 7
    assert len(low_bits.unique()) == 8  # every mantissa of E4M3


def test_a_weight_of_another_sign_leaves_the_bound() -> None:
    case = random_case(problem(16), (16, 7), 1, exact=False)
    reference, bound = case.reference().y, case.bound()
    assert [len(one) for one in violations(case.reference(torch.float32).y, reference, bound)] == [0, 0]
    wrong = [replace(one, fc2=(one.fc2.view(torch.uint8) ^ 0x80).view(torch.float8_e4m3fn)) for one in case.weights]
    assert len(violations(replace(case, weights=wrong).reference().y, reference, bound)[0]) > 1000


def test_weights_come_back_from_kernel_order() -> None:
    case = random_case(problem(4), (1, 1), 2, exact=False)
    given = case.weights[0]
    kernel = config(case.problem)
    found = inverse_transform_weights(case.problem, kernel.arch, transform_weights(case.problem, kernel.arch, given))
    assert isinstance(found, ExpertWeights) and found.fc1.dtype == torch.float8_e4m3fn
    assert all(
        torch.equal(getattr(found, name).view(torch.uint8), getattr(given, name).view(torch.uint8)) for name in ("fc1", "fc1_sf", "fc2")
    )


def test_weights_are_loaded_as_they_are() -> None:
    """As many bytes of weights as a stage has room for, through maps that unpack nothing."""
    kernel = config(problem())
    maps = kernel.tensor_maps(0, dict.fromkeys(("fc1", "fc1_sf", "fc2", "fc2_sf"), 0))
    for phase in (0, 4):
        weights = maps[phase + TABLE_MAPS.index("weights")]
        assert weights.dtype is TensorMapDtype.U8 and weights.transaction_bytes == weights.box_bytes == kernel.pair_stage.weight_bytes


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [96, *map(rarely, (16, 192))])
def test_tile_fits_the_chip(block_m: int) -> None:
    """No spills, registers within budgets; as many stages as with E2M1 weights, which take the same room there."""
    kernel = choose(PRESETS["pro"].problem(8192, recipe=RECIPE), Target.typical("sm_100a"), 128, block_m=block_m)
    compile_fitting("pro", kernel, SMEM_BYTES)
    assert kernel.num_stages == choose(PRESETS["pro"].problem(8192), Target.typical("sm_100a"), 128, block_m=block_m).num_stages


def test_hopper_refuses_it_by_name() -> None:
    with pytest.raises(ConfigError, match=rf"problem.recipe = '{RECIPE}': must be fp8xfp8 or fp8xmxfp4 or bf16xbf16 for {SM90}"):
        choose(problem(), Target.typical("sm_90a"), 24)
