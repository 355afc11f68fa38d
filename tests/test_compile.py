"""`compile(problem, arch=...)`: an artifact that answers for itself."""

from __future__ import annotations

import pytest

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.compile import compile, compile_kernel
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.problem import MAX_CLAMP, MIN_CLAMP, Problem, ProblemError
from sweep import sample


@pytest.mark.parametrize(("arch", "recipe", "role"), [("sm_100a", "fp8xfp4", "MMA warp"), ("sm_90a", "fp8xfp8", "token loader")])
def test_artifact_has_code_resources_and_histogram(arch, recipe, role):
    artifact = compile(Problem(512, 256, 8, 2, 2, 16, recipe=recipe), arch, num_sms=4)
    assert artifact.arch.name == arch and f".target {arch}" in artifact.ptx and artifact.cubin[:4] == b"\x7fELF"
    assert artifact.resources.stack_bytes == 0 and artifact.resources.registers <= 168
    assert artifact.histogram(role)["K block"]["mbarrier"] >= 1
    with pytest.raises(KeyError, match="must be one of"):
        artifact.histogram("nobody")


@pytest.mark.parametrize("given", [Problem(512, 256, 8, 2), None, "flash"])
def test_what_is_no_configuration_is_refused(given):
    with pytest.raises(ConfigError, match=r"^config = .*(Problem|None|flash).*: must be .*Sm100Config"):
        compile_kernel(given)


@sample("1e-05")
@pytest.mark.parametrize("clamp", [MIN_CLAMP, 1e-5, 0.1, MAX_CLAMP])
def test_a_kernels_name_can_carry_any_clamp(clamp):
    problem = Problem(256, 128, 4, 2, 2, 16, recipe="fp8xfp8", activation_clamp=clamp)
    assert "activation_clamp" in compile_kernel(choose(problem, Target.typical("sm_90a", 4), 16)).entry


@pytest.mark.parametrize(("arch", "field"), [("sm_80", "arch"), ("sm_90a", "recipe")])
def test_bad_requests_name_the_field(arch, field):
    with pytest.raises((ProblemError, ConfigError), match=field):
        compile(Problem(512, 256, 8, 2, 2, 16), arch)
