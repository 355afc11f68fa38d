"""Linear2 by tiles (bench/moe_layers/tiles.py): which are compiled and timed beside the chosen one."""

from __future__ import annotations

import pytest

from megamoe_dsl.blocks.gemm.problem import GEMM_RECIPES
from megamoe_dsl.target import Target
from moe_layers.point import MEASURED, TOKENS, ExpertPoint, find_points
from moe_layers.tiles import ALONE, ONE_BY_ONE, fc1_configs, tile_configs

TARGET = Target.typical("sm_90a")


@pytest.mark.parametrize("recipe", [GEMM_RECIPES[0], "bf16xbf16"])
@pytest.mark.parametrize("model", MEASURED)
@pytest.mark.parametrize("tokens", TOKENS)
def test_the_chosen_tile_is_first_and_none_is_there_twice(model: str, tokens: int, recipe: str) -> None:
    point = ExpertPoint(model, tokens, recipe)
    configs = tile_configs(point, TARGET)
    assert next(iter(configs)) == "chosen" and configs["chosen"] == point.layer.configs(TARGET, tokens).fc2
    assert len(set(configs.values())) == len(configs) >= 2
    assert {one.problem for one in configs.values()} == {configs["chosen"].problem}


def test_tiles_of_the_record_are_among_them() -> None:
    (few, many) = find_points(["deepseek-v3:1024:bf16xbf16", "deepseek-v3:16384:bf16xbf16"])
    tiles = {name: (one.block_m, one.block_n, one.swap_ab) for name, one in tile_configs(few, TARGET).items() if name != ONE_BY_ONE}
    assert tiles == {"chosen": (48, 128, True), "equal rows": (32, 128, True), "twice the columns": (48, 256, True)}
    shapes = {name: (one.block_m, one.block_n, one.half_tiles, one.cluster) for name, one in tile_configs(many, TARGET).items()}
    wide = {"192 x 128": (192, 128, False, 1), "192 x 128 in pairs": (192, 128, False, 2)}
    assert shapes == {"chosen": (128, 256, True, 2), "equal rows": (128, 256, False, 1), **wide, ALONE: (128, 256, True, 1)}
    assert [one.cluster for one in fc1_configs(many, TARGET).values()] == [2, 1]


@pytest.mark.parametrize(("tokens", "burst"), [(64, 2), (1024, 2), (4096, 1)])
def test_few_rows_are_timed_with_and_without_bursts(tokens: int, burst: int) -> None:
    """Of both linears, which differ in nothing else."""
    point = ExpertPoint("deepseek-v3", tokens)
    chosen = point.layer.configs(TARGET, tokens)
    assert (chosen.fc1.burst, chosen.fc2.burst) == (burst, burst)
    for configs in (fc1_configs(point, TARGET), tile_configs(point, TARGET)):
        assert (ONE_BY_ONE in configs, ALONE in configs) == (burst > 1, burst == 1)
        assert burst == 1 or configs[ONE_BY_ONE].replace(burst=burst) == configs["chosen"]
