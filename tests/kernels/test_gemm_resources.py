"""What the compiler made of the GEMM's configurations, read from the cubin without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megamoe_dsl import GemmConfig, GemmProblem
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.presets import PROJECTIONS, projection
from megamoe_dsl.target import Target
from sweep import rarely, sample

DENSE = GemmProblem(2112, 7168)
PACKED = GemmProblem(4096, 4096, "packed", 32)
FP4 = replace(DENSE, recipe="fp8xmxfp4")
UNSCALED = replace(DENSE, recipe="bf16xbf16")
CONFIGS = {
    "two parts of 128": GemmConfig(DENSE, 128, 256),
    "one part of 192, pairs": GemmConfig(DENSE, 128, 192, cluster=2, dynamic_schedule=True),
    "halves of K": GemmConfig(DENSE, 128, 136, cluster=2, split_k=True, epilogue_buffers=1),
    "three warpgroups": GemmConfig(DENSE, 192, 128, cluster=2),
    "two ahead": GemmConfig(DENSE, 128, 128, k_in_flight=2),
    "eight ahead": GemmConfig(DENSE, 64, 32, warpgroups=1, k_in_flight=8),
    "swapped": GemmConfig(PACKED, 32, 128, swap_ab=True, k_in_flight=2),
    "half_tiles": GemmConfig(PACKED, 128, 256, half_tiles=True, dynamic_schedule=True),
    "BF16": GemmConfig(UNSCALED, 128, 256, cluster=2),
    "BF16, packed halves": GemmConfig(replace(PACKED, recipe="bf16xbf16"), 128, 256, half_tiles=True, dynamic_schedule=True),
    "BF16, swapped": GemmConfig(UNSCALED, 16, 256, swap_ab=True),
    "decoding, 64 rows": GemmConfig(FP4, 64, 256, swap_ab=True),
    "decoding, one block, halves of K": GemmConfig(FP4, 64, 128, swap_ab=True, cluster=2, split_k=True),
    "decoding, one warpgroup": GemmConfig(FP4, 8, 64, swap_ab=True),
    "decoded, 128 rows": GemmConfig(FP4, 128, 256, epilogue_buffers=1),
    "decoded, packed halves": GemmConfig(
        replace(PACKED, recipe="fp8xmxfp4"), 128, 256, half_tiles=True, dynamic_schedule=True, epilogue_buffers=1
    ),
    "decoded, 256 rows": GemmConfig(FP4, 256, 128),
    "decoding, packed rows": GemmConfig(replace(PACKED, recipe="fp8xmxfp4"), 64, 256, swap_ab=True, dynamic_schedule=True),
}
SCALED = {
    "W4A8": Sm100GemmConfig(GemmProblem(2112, 7168, recipe="fp8xfp4"), 192),
    "W4A4, grouped": Sm100GemmConfig(GemmProblem(4096, 4096, "masked", 32, recipe="mxf4xmxf4"), 64, block_k=256, dynamic_schedule=True),
    "W4A8, float32": Sm100GemmConfig(GemmProblem(2112, 7168, output="f32", accumulate=True, recipe="fp8xfp4"), 128),
    "W4A4, 128 of K": Sm100GemmConfig(GemmProblem(2112, 7168, recipe="mxf4xmxf4"), 32),
}
SUITE = ("W4A8",)


@sample("BF16, packed halves", "decoding, packed rows")
@pytest.mark.parametrize("name", CONFIGS)
def test_registers_are_enough(name: str) -> None:
    """Nothing on the stack, every role within its budget, and no load that what gives its bytes away does not wait for."""
    config = CONFIGS[name]
    compiled = compile_kernel(config)
    assert compiled.resources.stack_bytes == 0
    uses = register_use(config.registers, compiled.listing)
    groups = {"loader", "math", *(("decode",) if config.weights.decode_warps else ())}
    assert {one.group for one in uses} == groups and all(one.fits for one in uses)
    assert compiled.overtaken_loads == []


@pytest.mark.parametrize("name", [name if name in SUITE else rarely(name) for name in SCALED])
def test_a_pair_fits_the_chip(name: str) -> None:
    """Nothing on the stack, registers for all threads, columns for all accumulators, no load that is overtaken, a ring of six stages."""
    config = SCALED[name]
    compiled = compile_kernel(config, line_info=True)
    assert compiled.resources.stack_bytes == 0 and compiled.listing.spills == (0, 0)
    assert compiled.resources.registers * config.num_threads <= config.arch.registers
    assert compiled.overtaken_loads == []
    assert config.tmem.used <= config.tmem.allocated <= config.arch.tmem_columns
    assert config.num_stages >= 6 and compiled.dynamic_smem <= config.arch.smem_bytes
    measures = {one.key: one.instructions for one in compiled.kernel.measures(config, compiled.listing)}
    assert measures["mma_k_block"] < 70 and measures["token_loader_k_block"] < 30 and measures["weight_loader_k_block"] < 30


def test_a_ring_of_four_stages_fills_shared_memory() -> None:
    config = CONFIGS["two parts of 128"]
    assert config.num_stages == 4
    assert find_kernel("gemm").dynamic_smem(config) == config.arch.smem_bytes


@pytest.mark.parametrize("name", PROJECTIONS)
def test_every_matrix_of_a_model_has_configurations(name: str) -> None:
    problem = projection(name).problem
    for rows in (1, 64, 4096):
        config = find_kernel("gemm").choose(problem, Target.typical("sm_90a"), rows)
        assert (config.problem.n, config.problem.k) == (projection(name).n, projection(name).k)
