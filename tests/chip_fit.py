"""What must hold of a compiled kernel on every chip."""

from __future__ import annotations

from megamoe_dsl.arch import REGISTER_FILE
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.inspect.inspection import register_use
from megamoe_dsl.kernels.moe.config import MegaMoeConfig


def compile_fitting(name: str, config: MegaMoeConfig, smem_capacity: int) -> Artifact:
    """Compiles what fits (`assert_fits`)."""
    artifact = compile_kernel(config)
    print(f"{name}, BLOCK_M {config.block_m}: compiled in {artifact.seconds:.2f} s, {len(artifact.listing.instructions)} instructions")
    assert_fits(artifact, config, smem_capacity)
    return artifact


def assert_fits(artifact: Artifact, config: MegaMoeConfig, smem_capacity: int) -> None:
    """No spills, registers within each role's budget and the register file, SMEM within its capacity, no load overtaken."""
    assert artifact.resources.stack_bytes == 0
    assert artifact.listing.spills == (0, 0)
    assert artifact.resources.registers * config.num_threads <= REGISTER_FILE
    assert (config.register_total or 0) <= REGISTER_FILE
    for use in register_use(config.registers, artifact.listing):
        assert use.fits, use
    assert config.smem.region.size <= smem_capacity
    assert artifact.overtaken_loads == []
