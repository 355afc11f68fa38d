"""All kernels of a preset, compiled or loaded from the cache: what `import megamoe_dsl.presets.deepseek_v4_flash` gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..kernels.mega_moe.sm90.config import NUM_SMS
from ..kernels.mega_moe.target import Config, choose_config
from ..problem import Problem, ProblemError
from ..tuned import DEFAULT_GPU
from .shapes import Preset, preset

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact

ARCH_VARIABLE = "MEGAMOE_ARCH"
MAX_TOKENS = 8192
"""Tokens per rank up to which a preset's kernels are compiled: the capacity is a compile-time constant of a kernel."""
CLAMP = 10.0
"""Activation clamp of DeepSeek-V4."""


@dataclass(frozen=True)
class Target:
    """An architecture, the activation and weight types of its kernel, and the GPU: its SMs (by default those of the largest), and its
    name, if its configurations were measured (tuned/)."""

    arch: str
    recipe: str
    num_sms: int
    gpu: str | None = None


TARGETS = {"sm_100a": Target("sm_100a", "fp8xfp4", 148), "sm_90a": Target("sm_90a", "fp8xfp8", NUM_SMS, DEFAULT_GPU)}
NAME_BYTES = 256
CAPABILITIES = {(10, 0): "sm_100a", (9, 0): "sm_90a"}


def target_named(arch: str, field: str = "arch") -> Target:
    """Raises `ProblemError` with the known names; `field` is where this one comes from."""
    if arch not in TARGETS:
        raise ProblemError(field, arch, "one of " + ", ".join(TARGETS))
    return TARGETS[arch]


def target_at_hand() -> Target:
    """What `MEGAMOE_ARCH` names, else the first local GPU, else SM100.  Raises `ProblemError` for a name that is unknown."""
    if asked := os.environ.get(ARCH_VARIABLE):
        return target_named(asked, ARCH_VARIABLE)
    return local_target() or TARGETS["sm_100a"]


def local_target() -> Target | None:
    """The first GPU that the driver shows, or None when there is no driver or no GPU that has a kernel."""
    try:
        from cuda.bindings import driver

        attribute = driver.CUdevice_attribute
        names = (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return None
        answers = [*(driver.cuDeviceGetAttribute(name, 0) for name in names), driver.cuDeviceGetName(NAME_BYTES, 0)]
    except (ImportError, RuntimeError):
        return None
    if any(status != driver.CUresult.CUDA_SUCCESS for status, _ in answers):
        return None
    major, minor, num_sms, name = (value for _, value in answers)
    arch = CAPABILITIES.get((major, minor))
    return None if arch is None else Target(arch, TARGETS[arch].recipe, num_sms, name.split(b"\0")[0].decode())


def choose(problem: Problem, num_tokens: int, target: Target) -> Config:
    """The configuration of the target's kernel for `num_tokens` tokens on every rank."""
    return choose_config(problem, num_tokens, target.num_sms, target.gpu)


def configs_up_to(problem: Problem, num_tokens: int, target: Target) -> list[Config]:
    """Every configuration that 0 to `num_tokens` tokens ask for, in that order: a measured one may come back, so every number is tried
    (8192 take about 0.1 s)."""
    return list(dict.fromkeys(choose(problem, tokens, target) for tokens in range(num_tokens + 1)))


@dataclass(frozen=True)
class CompiledPreset:
    """A preset's layer with the kernels for any number of tokens on a rank.

    problem    the layer; its recipe are the target's
    artifacts  configuration to kernel
    """

    preset: Preset
    problem: Problem
    target: Target
    artifacts: Mapping[Config, Artifact]

    @classmethod
    def load(cls, name: str, *, target: Target | None = None, max_tokens_per_rank: int = MAX_TOKENS) -> CompiledPreset:
        """Every kernel that some number of tokens up to the maximum asks for, from the cache or compiled in parallel.

        Raises `ProblemError` and `CompileError`.
        """
        from ..artifact.cache import load_or_compile_all

        target = target or target_at_hand()
        one = preset(name)
        problem = one.problem(max_tokens_per_rank, recipe=target.recipe, activation_clamp=CLAMP)
        configs = configs_up_to(problem, max_tokens_per_rank, target)
        artifacts = dict(zip(configs, load_or_compile_all(configs), strict=True))
        return cls(one, problem, target, MappingProxyType(artifacts))

    def config(self, num_tokens: int) -> Config:
        """What runs when every rank has at most `num_tokens` tokens.  Raises `ProblemError` beyond the capacity."""
        return choose(self.problem, num_tokens, self.target)

    def artifact(self, num_tokens: int) -> Artifact:
        """The kernel of `config(num_tokens)`."""
        return self.artifacts[self.config(num_tokens)]
