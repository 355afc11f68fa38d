"""Compiled kernels answer for themselves."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cutlass.cute as cute
import pytest

from megamoe_dsl import Sm100Config, Target, choose
from megamoe_dsl.arch import SM90, SM100, arch_of_capability
from megamoe_dsl.artifact.artifact import Artifact, CompileError, read_code
from megamoe_dsl.artifact.compile import compile_kernel, require_whole
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.problem import MAX_CLAMP, MIN_CLAMP, Problem
from sweep import sample


@pytest.mark.parametrize(("arch", "recipe", "role"), [("sm_100a", "fp8xfp4", "MMA warp"), ("sm_90a", "fp8xfp8", "token loader")])
def test_artifact_has_code_resources_and_histogram(arch, recipe, role):
    artifact = compile_kernel(choose(Problem(512, 256, 8, 2, 2, 16, recipe=recipe), Target.typical(arch, 4), 16), line_info=True)
    assert artifact.arch.name == arch and f".target {artifact.arch.compiled_for}" in artifact.ptx and artifact.cubin[:4] == b"\x7fELF"
    assert artifact.resources.stack_bytes == 0 and artifact.resources.registers <= 168 and artifact.line_info
    stack = re.compile(rb"(?<=\x04\x12\x08\0)(....)\0{4}", re.DOTALL)  # what a kernel needs of a stack, apart from its frames
    spilled = stack.sub(lambda found: found[1] + b"\x08\0\0\0", artifact.cubin)
    assert spilled != artifact.cubin and replace(artifact, cubin=spilled).resources.stack_bytes == 8
    assert artifact.histogram(role)["K block"]["mbarrier"] >= 1
    with pytest.raises(KeyError, match="must be one of"):
        artifact.histogram("nobody")


@pytest.mark.parametrize("line_info", [False, True])
@pytest.mark.parametrize("variable", [None, "sm_100a"])
def test_what_the_dsl_is_asked_for(line_info: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the configuration's architecture, whatever the DSL's own variable says; that is set where a user has not."""
    asked: list[Any] = []

    def compiled(*given: Any, options: str, **others: Any) -> Any:
        asked.append((given[1], set(options.split()), others))
        return SimpleNamespace(__ptx__="ptx", __cubin__=b"cubin")

    monkeypatch.setenv("CUTE_DSL_ARCH", variable or "")
    if variable is None:
        monkeypatch.delenv("CUTE_DSL_ARCH")
    monkeypatch.setattr(cute, "compile", compiled)
    config = choose(Problem(256, 128, 4, 2, 2, 16, recipe="fp8xfp8"), Target.typical("sm_90a", 4), 16)
    found = compile_kernel(config, line_info=line_info) if line_info else compile_kernel(config)
    ((given, options, others),) = asked
    wanted = {"--gpu-arch=sm_90a", "--keep-ptx", "--keep-cubin"} | ({"--generate-line-info"} if line_info else set())
    assert {one for one in options if not one.startswith("--dump-dir=")} == wanted and len(options) == len(wanted) + 1
    assert given is config and others == {"no_jit_engine": True} and os.environ["CUTE_DSL_ARCH"] == (variable or "sm_90a")
    assert (found.config, found.ptx, found.cubin, found.line_info) == (config, "ptx", b"cubin", line_info)


def test_chips_of_a_family_have_one_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    """B300 has the instructions of B200; code for both is that for B200 alone, where ptxas orders those for B300 alone otherwise."""

    def compiled(target: str) -> Artifact:
        with monkeypatch.context() as patch:
            patch.setattr(Sm100Config, "arch", replace(SM100, compiled_for=target))
            return compile_kernel(choose(Problem(256, 128, 4, 2, 2, 16), Target.typical("sm_100a", 2), 16))

    both, *alone = (compiled(name) for name in ("sm_100f", "sm_100a", "sm_103a"))
    assert len({re.sub(r"\.target \w+", "", one.ptx) for one in (both, *alone)}) == 1
    assert read_code(both.cubin, both.entry) == read_code(alone[0].cubin, both.entry) != read_code(alone[1].cubin, both.entry)
    assert [arch_of_capability(one) for one in ((9, 0), (10, 0), (10, 3), (12, 0))] == [SM90, SM100, SM100, None]


@pytest.mark.parametrize("given", [Problem(512, 256, 8, 2), None, "flash"])
def test_what_is_no_configuration_is_refused(given):
    with pytest.raises(ConfigError, match=r"^config = .*(Problem|None|flash).*: must be a configuration: choose"):
        compile_kernel(given)


@sample("1e-05")
@pytest.mark.parametrize("clamp", [MIN_CLAMP, 1e-5, 0.1, MAX_CLAMP])
def test_a_kernels_name_can_carry_any_clamp(clamp):
    problem = Problem(256, 128, 4, 2, 2, 16, recipe="fp8xfp8", activation_clamp=clamp)
    assert "activation_clamp" in compile_kernel(choose(problem, Target.typical("sm_90a", 4), 16)).entry


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where files are whole, but nothing more can be written; an empty file beside room is another error."""
    free = SimpleNamespace(free=0)
    monkeypatch.setattr("megamoe_dsl.artifact.compile.shutil.disk_usage", lambda place: free)
    with pytest.raises(CompileError, match="the disk is full, TMPDIR must have 16 MiB"):
        require_whole(str(tmp_path), "ptx", b"cubin")
    free.free = 1 << 40
    require_whole(str(tmp_path), "ptx", b"cubin")
    with pytest.raises(CompileError, match=rf"could not write PTX and cubin into {tmp_path}$"):
        require_whole(str(tmp_path), "ptx", b"")
