"""Layers whose hidden and intermediate fill no whole tiles: the compiled kernels on two simulated ranks.

What lies beyond a row's last channel is the next row, or has never been written: all of memory is NaN before a launch (`Layer.poison`), so
that y equals the reference's bits only where nothing of it is read, and neighbors' results only where nothing is written there."""

from __future__ import annotations

import mega_moe_runs
import pytest
from sm90_runs import config, problem, prove

from megamoe_dsl import Target, choose
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.problem import Problem
from sweep import rarely, sample

E4M3 = {"combine": "e4m3"}
GPT_OSS = {"recipe": "fp8xmxfp4", "biases": True, "activation": "swigluoai"}


@sample("exact rows")
@pytest.mark.parametrize(
    ("channels", "block_m", "fields", "exact"),
    [
        ((1312, 192), 8, E4M3, False),
        ((448, 64), 128, {}, True),
        rarely((320, 320), 128, E4M3 | {"biases": True}, False),
        rarely((2880, 96), 16, GPT_OSS, False),
        ((320, 160), 128, GPT_OSS | {"weigh_results": True}, False),
        rarely((32, 32), 32, {}, True),
        rarely((1376, 64), 128, {}, False),
        rarely((640, 448), 64, {"recipe": "fp8xmxfp4"} | E4M3, True),
        rarely((320, 64), 128, {"recipe": "fp8xmxfp4"}, True),
    ],
    ids=[
        "several pieces",
        "exact rows",
        "biases",
        "gpt-oss",
        "packed rows",
        "one tile",
        "pieces as rows",
        "64 packed columns",
        "exact packed",
    ],
)
def test_on_sm90(channels: tuple[int, int], block_m: int, fields: dict[str, str | bool], exact: bool) -> None:
    hidden, intermediate = channels
    moe = problem(21, hidden=hidden, intermediate=intermediate, num_experts=4, **fields)
    prove(config(moe, block_m=block_m, lookahead=1), [(21, 9)], seed=block_m, mask=0.1, exact=exact)


@sample("biases")
@pytest.mark.parametrize(
    ("channels", "block_m", "fields", "exact"),
    [
        ((480, 224), 32, {"recipe": "mxfp8xmxfp8"}, False),
        rarely((1312, 192), 32, E4M3, False),
        ((352, 96), 16, {"biases": True}, True),
        ((352, 160), 32, {"recipe": "mxf4xmxf4"}, False),
        rarely((352, 160), 32, {"recipe": "nvfp4xnvfp4"}, True),
        rarely((32, 32), 64, {"recipe": "mxf4xmxf4"} | E4M3, True),
        rarely((576, 192), 192, {"biases": True, "activation": "swigluoai"}, False),
    ],
    ids=["eight bits", "several pieces", "biases", "packed tokens", "words of 64 channels", "one tile", "192 tokens"],
)
def test_on_sm100(channels: tuple[int, int], block_m: int, fields: dict[str, str | bool], exact: bool) -> None:
    hidden, intermediate = channels
    moe = mega_moe_runs.problem(21, hidden=hidden, intermediate=intermediate, num_experts=4, **fields)
    kernel = mega_moe_runs.config(moe, block_m=block_m, lookahead=1)
    mega_moe_runs.prove(kernel, [(21, 9)], seed=block_m, mask=0.1, exact=exact)


@pytest.mark.sweep
def test_pairs_of_ctas_over_several_launches() -> None:
    moe = problem(140, hidden=960, intermediate=448, num_experts=4)
    prove(config(moe, block_m=128, cluster=2), [(140, 3), (0, 130)], target_expert=1, exact=False)


@pytest.mark.parametrize("field", ["hidden", "intermediate"])
def test_kernels_that_take_whole_tiles_only_say_so(field: str) -> None:
    fields = {"hidden": 512, "intermediate": 256, "num_experts": 4, "topk": 2, field: 320}
    step = {"hidden": 256, "intermediate": 128}[field]
    said = f"problem.{field} = 320: must be a multiple of {step}"
    on_sm90, on_sm100 = (Problem(**fields, recipe=recipe) for recipe in ("fp8xfp8", "fp8xfp4"))
    for fused in (config(on_sm90), choose(on_sm100, Target.typical("sm_100a"), 8)):
        with pytest.raises(ConfigError, match=f"{said} in stages"):
            stage_configs(fused)
    with pytest.raises(ConfigError, match=f"{said} in halves of the layer"):
        DispatchGemmConfig(on_sm90)
