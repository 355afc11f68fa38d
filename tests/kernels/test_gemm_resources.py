"""What the compiler made of the GEMM's configurations, read from the cubin without a GPU."""

from __future__ import annotations

import pytest

from gemm_runs import artifact
from megamoe_dsl import GemmConfig, GemmProblem
from megamoe_dsl.inspect.registers import register_use
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.presets import PROJECTIONS, projection
from megamoe_dsl.target import Target

DENSE = GemmProblem(2112, 7168)
PACKED = GemmProblem(4096, 4096, "packed", 32)
CONFIGS = {
    "two parts of 128": GemmConfig(DENSE, 128, 256),
    "one part of 192, pairs": GemmConfig(DENSE, 128, 192, cluster=2, dealt=True),
    "halves of K": GemmConfig(DENSE, 128, 136, cluster=2, split_k=True, boxes=1),
    "three warpgroups": GemmConfig(DENSE, 192, 128, cluster=2),
    "two ahead": GemmConfig(DENSE, 128, 128, ahead=2),
    "eight ahead": GemmConfig(DENSE, 64, 32, warpgroups=1, ahead=8),
    "swapped": GemmConfig(PACKED, 32, 128, swap_ab=True, ahead=2),
    "halves": GemmConfig(PACKED, 128, 256, halves=True, dealt=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_registers_are_enough(name: str) -> None:
    """Nothing on the stack, every role within its budget, and no load that what gives its bytes away does not wait for."""
    config = CONFIGS[name]
    compiled = artifact(config)
    assert compiled.resources.stack_bytes == 0
    uses = register_use(compiled.kernel.registers(config), compiled.listing)
    assert {one.group for one in uses} == {"loader", "math"} and all(one.fits for one in uses)
    assert compiled.overtaken_loads == []


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
