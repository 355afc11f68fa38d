"""What the compiler made of the expert-parallel kernels at the presets' sizes, read from the cubin without a GPU."""

from __future__ import annotations

import pytest
from chip_fit import compile_fitting

from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.ep_moe.config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime.cuda_kernel import check_resident

KINDS: dict[str, type[EpConfig]] = {"dispatch": DispatchGemmConfig, "combine": GemmCombineConfig}


@pytest.mark.parametrize(
    ("kind", "preset", "changes"),
    [
        ("dispatch", "deepseek-v3", {}),
        ("dispatch", "pro", {"block_n": 128}),
        ("dispatch", "flash", {"token_saving": False}),
        ("combine", "deepseek-v3", {}),
        ("combine", "flash", {"block_m": 64, "block_n": 128}),
    ],
)
def test_kernel_fits_the_chip(kind: str, preset: str, changes: dict[str, int]) -> None:
    """No spills, every role within its budget, SMEM within capacity, no load overtaken."""
    config = KINDS[kind](PRESETS[preset].problem(8192, recipe="fp8xfp8"), **changes)
    artifact = compile_fitting(f"{preset}, {kind}", config, SMEM_BYTES)
    assert dict(artifact.kernel.registers(config)) == {"communication": 48, "loader": 32, "math": 216}
    assert config.num_stages >= 3
    check_resident(config, config.num_sms)
    with pytest.raises(ConfigError, match=rf"num_sms = {config.num_sms}: must be at most {config.num_sms - 1}: so many CTAs"):
        check_resident(config, config.num_sms - 1)
