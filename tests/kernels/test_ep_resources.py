"""What the compiler made of the expert-parallel kernels at the presets' sizes, read from the cubin without a GPU."""

from __future__ import annotations

import pytest
from chip_fit import compile_fitting

from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.kernels.ep_moe.config import DispatchGemmConfig
from megamoe_dsl.presets import PRESETS


@pytest.mark.parametrize(("preset", "changes"), [("deepseek-v3", {}), ("pro", {"block_n": 128}), ("flash", {"token_saving": False})])
def test_dispatch_fits_the_chip(preset: str, changes: dict[str, int]) -> None:
    """No spills, every role within its budget, SMEM within capacity, no load overtaken."""
    config = DispatchGemmConfig(PRESETS[preset].problem(8192, recipe="fp8xfp8", activation_clamp=None), **changes)
    artifact = compile_fitting(f"{preset}, dispatch_grouped_gemm", config, SMEM_BYTES)
    assert dict(artifact.kernel.registers(config)) == {"communication": 48, "loader": 32, "math": 216}
    assert config.num_stages >= 3
