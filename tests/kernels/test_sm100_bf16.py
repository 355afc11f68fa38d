"""The SM100 kernel in BF16 on simulated ranks: every tile, shapes that end within one, what else a layer may have, the bits of `moe`.

A sample runs with the suite, all of it with

    python -m pytest -m "sweep or not sweep" tests/kernels/test_sm100_bf16.py
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mega_moe_runs import Layer, config, inputs, prove, prove_tile
from mega_moe_runs import problem as any_problem

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.hardware.operand_tile import ROW_BYTES
from megamoe_dsl.hardware.tensor_map import TensorMapDtype
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.sm100.choose import tiers_of
from megamoe_dsl.kernels.moe.sm100.memory_plan import TABLE_MAPS
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, inverse_transform_weights, transform_weights
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from ptx_of import artifact
from simulated_experts import simulate_experts
from sweep import rarely, sample

RECIPE = "bf16xbf16"


def problem(tokens: int = 24, **changes: Any) -> Problem:
    return any_problem(tokens, **{"num_experts": 4, "recipe": RECIPE, **changes})


TILES = [tier.block_m for tier in tiers_of(problem())]


@pytest.mark.parametrize("block_m", [64 if tile == 64 else rarely(tile) for tile in TILES])
def test_every_tile(block_m: int) -> None:
    prove_tile(problem(block_m + 5, hidden=512, intermediate=256), block_m)


@sample("96")
@pytest.mark.parametrize("block_m", [96, rarely(16)])
def test_shapes_that_end_within_a_tile(block_m: int) -> None:
    """Channels that are no multiple of a tile's, nor of a K block's."""
    prove(config(problem(40, hidden=352, intermediate=160), block_m=block_m), [(33, 5)], exact=False, mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, rarely(128)])
def test_four_ranks_unequal_and_empty(block_m: int) -> None:
    moe = problem(16, num_ranks=4, num_experts=8, topk=3)
    prove(config(moe, block_m=block_m), [(5, 0, 9, 2), (0, 16, 1, 0), (0, 0, 0, 0), (16, 11, 16, 16)], mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes",
    [{"combine": "e4m3"}, {"biases": True}, {"weigh_results": True, "activation": "swigluoai", "activation_clamp": 7.0}],
    ids=str,
)
def test_what_else_a_layer_may_have(changes: dict[str, Any]) -> None:
    prove(config(problem(20, **changes), block_m=32), [(20, 3)], exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("fields", [{"store_block_m": 16}, {"epilogue_warpgroups": 1}], ids=str)
def test_shorter_passes_and_one_warpgroup(fields: dict[str, int]) -> None:
    prove(config(problem(40), block_m=32, **fields), [(40, 3)], exact=False)


def test_bits_are_those_of_four_launches() -> None:
    """Sums over all of K come in one order, and top-k weights are applied to results: so y is that of `moe`."""
    moe = problem(12, num_ranks=1, topk=3, hidden=512, intermediate=256, weigh_results=True)
    case = random_case(moe, (12,), 1, exact=False)
    y, _ = Layer.of(config(moe), case).moe(inputs(case))
    weights = case.weights[0]
    given = LayerOperands(weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf)
    own = ExpertLayer(512, 256, 4, 3, recipe=RECIPE)
    call = ExpertCall(own, case.x[0], case.topk_idx[0], case.topk_weights[0], given)
    found, _ = simulate_experts([artifact(one) for one in own.configs(Target.typical("sm_100a", 4), 12)], call)
    assert torch.equal(y[0], found)


def test_weights_come_back_from_kernel_order() -> None:
    case = random_case(problem(4), (1, 1), 2, exact=False)
    given, arch = case.weights[0], config(case.problem).arch
    found = inverse_transform_weights(case.problem, arch, transform_weights(case.problem, arch, given))
    assert isinstance(found, ExpertWeights) and torch.equal(found.fc1, given.fc1) and torch.equal(found.fc2, given.fc2)


def test_operands_have_two_bytes_a_value_and_no_scales() -> None:
    """A stage is 64 channels; tensor memory has sums alone, shared memory neither scales nor maxima."""
    kernel = config(problem())
    maps = kernel.tensor_maps(0, dict.fromkeys(("fc1", "fc1_sf", "fc2", "fc2_sf"), 0))
    for phase in (0, 4):
        weights = maps[phase + TABLE_MAPS.index("weights")]
        assert weights.dtype is TensorMapDtype.U8 and weights.transaction_bytes == weights.box_bytes == kernel.pair_stage.weight_bytes
        assert maps[phase + TABLE_MAPS.index("tokens")].box[0] == weights.box[0] == ROW_BYTES
    names = {place.field.name: place.field.num_bytes for place in kernel.smem.region}
    assert kernel.tmem.used == 2 * kernel.block_m and names["amax"] == 0 and not {"sfa", "sfb"} & names.keys()
    with pytest.raises(ConfigError, match=rf"block_k = 128: must be 64 for {RECIPE}"):
        kernel.replace(block_k=128)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [96, *map(rarely, (16, 192))])
def test_tile_fits_the_chip(block_m: int) -> None:
    """No spills, registers within budgets."""
    compile_fitting("pro", choose(PRESETS["pro"].problem(8192, recipe=RECIPE), Target.typical("sm_100a"), 128, block_m=block_m), SMEM_BYTES)


def test_stages_refuse_it() -> None:
    with pytest.raises(
        ConfigError, match=rf"problem\.recipe = '{RECIPE}': must be one whose operands have scales, and no factors, in stages"
    ):
        stage_configs(config(problem()))
