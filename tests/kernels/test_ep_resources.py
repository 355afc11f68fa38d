"""What the compiler made of the expert-parallel kernels at the presets' sizes, read from the cubin without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from chip_fit import compile_fitting
from megamoe_dsl.arch import SMEM_BYTES
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, EpConfig, GemmCombineConfig
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.cuda_kernel import check_resident
from sweep import rarely, sample

KINDS: dict[str, type[EpConfig]] = {"dispatch": DispatchGemmConfig, "combine": GemmCombineConfig}


@sample("combine-deepseek-v3-changes3")
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
    compile_fitting(f"{preset}, {kind}", config, SMEM_BYTES)
    assert dict(config.registers) == {"communication": 48, "loader": 32, "math": 216}
    assert config.num_stages >= 3
    check_resident(config, config.num_sms)
    with pytest.raises(ConfigError, match=rf"num_sms = {config.num_sms}: must be at most {config.num_sms - 1}: so many CTAs"):
        check_resident(config, config.num_sms - 1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "preset", "changes"),
    [
        ("dispatch", "deepseek-v3", {"cluster": 2}),
        ("dispatch", "deepseek-v3", {"transposed": True}),
        ("combine", "deepseek-v3", {"transposed": True}),
        rarely("dispatch", "pro", {"tail_sms": 8}),
        rarely("combine", "deepseek-v3", {}),
        rarely("combine", "flash", {"interleaved": False}),
    ],
)
def test_kernel_in_bf16_fits_the_chip(kind: str, preset: str, changes: dict[str, Any]) -> None:
    """The same, with rows twice as long: four chunks of a row are on their way, and there are three stages still."""
    config = KINDS[kind](PRESETS[preset].problem(8192, recipe="bf16xbf16"), **changes)
    compile_fitting(f"{preset}, {kind}, BF16", config, SMEM_BYTES)
    assert config.num_stages >= 3 and config.block_n == 256
    check_resident(config, config.num_sms)


@pytest.mark.parametrize(
    ("kind", "preset", "recipe", "changes"),
    [
        rarely("dispatch", "deepseek-v3", "fp8xfp4", {}),
        ("dispatch", "flash", "mxf4xmxf4", {}),
        rarely("combine", "pro", "fp8xfp4", {"block_m": 192}),
        rarely("dispatch", "deepseek-v3", "bf16xbf16", {}),
        rarely("combine", "deepseek-v3", "mxfp8xmxfp8", {"scatter": False}),
    ],
)
def test_kernel_of_pairs_fits_the_chip(kind: str, preset: str, recipe: str, changes: dict[str, int]) -> None:
    """No spills, registers for all threads of a CTA, SMEM and TMEM within capacity, no load overtaken."""
    config = KINDS[kind](PRESETS[preset].problem(8192, recipe=recipe), arch_name="sm_100a", **changes)
    compile_fitting(f"{preset}, {kind}, {recipe}", config, SMEM_BYTES)
    assert config.registers == {}
    assert config.num_stages >= 4 and config.gemm.tmem.allocated <= config.arch.tmem_columns
    check_resident(config, config.num_sms)


def test_roles_of_pairs_are_measured() -> None:
    """Those of the GEMM; a K block has four MMAs."""
    moe = Problem(512, 256, num_experts=8, topk=3, num_ranks=2, max_tokens_per_rank=64, recipe="fp8xfp4")
    artifact = compile_kernel(DispatchGemmConfig(moe, arch_name="sm_100a"), line_info=True)
    found = {one.key: one for one in artifact.kernel.measures(artifact.config, artifact.listing)}
    assert {"mma_k_block", "token_loader_k_block", "weight_loader_k_block", "epilogue_8_rows"} <= set(found)
    assert found["mma_k_block"].kinds["mma"] == 4
