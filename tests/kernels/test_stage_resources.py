"""What the compiler made of the stages at the presets' sizes, read from the cubin without a GPU."""

from __future__ import annotations

import pytest

from chip_fit import compile_fitting
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.presets import PRESETS
from sweep import sample

NAMES = [stage.name for stage in STAGES]
CASES = [
    *(("pro", "fp8xfp8", 8192, name) for name in NAMES),
    ("flash", "fp8xfp8", 8, "moe_fc1"),
    ("flash", "fp8xfp8", 64, "moe_fc2"),
    ("pro", "fp8xmxfp4", 64, "moe_fc1"),
]


@sample("pro-fp8xfp8-8192-moe_dispatch", "pro-fp8xfp8-8192-moe_fc2", "pro-fp8xmxfp4-64-moe_fc1")
@pytest.mark.parametrize(("preset", "recipe", "tokens", "name"), CASES, ids=lambda value: str(value))
def test_stage_fits_the_chip(preset: str, recipe: str, tokens: int, name: str) -> None:
    """No spills, every role within its budget, SMEM within capacity, no load overtaken; rings at least as deep as the fused kernel's."""
    fused = choose(PRESETS[preset].problem(8192, recipe=recipe), Target.typical("sm_90a"), tokens)
    config = stage_configs(fused)[NAMES.index(name)]
    artifact = compile_fitting(f"{preset}, {name}", config, SMEM_BYTES)
    assert artifact.kernel.name == name
    linear = name in ("moe_fc1", "moe_fc2")
    assert dict(config.registers) == ({"loader": 40, "epilogue": 232} if linear else {})
    assert not linear or config.num_stages >= fused.num_stages
