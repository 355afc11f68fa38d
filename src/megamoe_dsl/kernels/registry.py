"""All families of kernels: a new one is its own folder and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arch import ARCHES, Arch
from ..config_error import ConfigError
from ..problem import ProblemError
from ..target import Target
from .decode.family import DecodeKernel
from .expert_routing.family import ROUTING_KERNELS, TOP_EXPERTS
from .gemm.family import GatherGemmKernel, GemmKernel, VarlenKKernel
from .kernel import Kernel, KernelConfig
from .moe.family import MegaMoeKernel, PreDispatchKernel
from .moe.halves.family import EP_KERNELS, RoutingTablesKernel
from .moe.unfused.family import STAGES

KERNELS: list[Kernel] = [
    MegaMoeKernel(),
    PreDispatchKernel(),
    GemmKernel(),
    GatherGemmKernel(),
    VarlenKKernel(),
    TOP_EXPERTS,
    DecodeKernel(),
    *ROUTING_KERNELS,
    *STAGES,
    RoutingTablesKernel(),
    *EP_KERNELS,
]


def find_kernel(name: str) -> Kernel:
    """By name.  Raises `ProblemError` with the known names."""
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    raise ProblemError("kernel", name, "one of " + ", ".join(kernel.name for kernel in KERNELS))


def kernel_of(config: object) -> Kernel:
    """The family of a configuration.  Raises `ConfigError` for any other object."""
    for kernel in KERNELS:
        if kernel.has(config):
            return kernel
    raise ConfigError("config", config, "a configuration: choose(problem, target, num_tokens) makes one")


def family_of(problem: object) -> Kernel:
    """The kernel that computes a problem in one launch; for a `Problem`, the fused layer.  Raises `ProblemError` for any other object."""
    for kernel in KERNELS:
        if kernel.problem is type(problem):
            return kernel
    known = dict.fromkeys(kernel.problem.__name__ for kernel in KERNELS)
    raise ProblemError("problem", problem, f"one of {', '.join(known)}")


def choose(problem: Any, target: Target, num_tokens: int, **fields: Any) -> Any:
    """The configuration that `family_of(problem)` chooses for up to `num_tokens` tokens on every rank, of a GEMM for rows of A.

    Where a point that was measured on the target's GPU is near, its configuration is taken; otherwise heuristics choose.  `fields` replace
    what is chosen.  Raises `ProblemError` for an architecture that the kernel does not run on, and `ConfigError`."""
    kernel = family_of(problem)
    if not isinstance(target, Target):
        raise ProblemError("target", target, 'a Target, as in Target.typical("sm_90a")')
    config_type(kernel, target.arch)
    return kernel.choose(problem, target, num_tokens, **fields)


def config_types() -> dict[tuple[str, str], tuple[Kernel, type[Any]]]:
    """Family and class of every configuration, by the names of both."""
    return {(kernel.name, kind.__name__): (kernel, kind) for kernel in KERNELS for kind in kernel.configs.values()}


def config_type(kernel: Kernel, arch: Arch) -> type[Any]:
    """A kernel's configuration class.  Raises `ProblemError` for an architecture that it does not run on."""
    if arch.name not in kernel.configs:
        raise ProblemError("arch", arch.name, f"one that {kernel.name} is written for: " + ", ".join(kernel.configs))
    return kernel.configs[arch.name]


def default_recipe(kernel: Kernel, arch: Arch) -> str:
    """The usual number formats of a kernel.  Raises `ProblemError` for an architecture that it does not run on."""
    config_type(kernel, arch)
    return kernel.recipes[arch.name][0]


def arch_of_recipe(kernel: Kernel, recipe: str) -> Arch:
    """The architecture on which a kernel takes these number formats.  Raises `ProblemError` for formats that it takes on none."""
    for arch, recipes in kernel.recipes.items():
        if recipe in recipes:
            return ARCHES[arch]
    known = ", ".join(one for recipes in kernel.recipes.values() for one in recipes)
    raise ProblemError("recipe", recipe, f"one that {kernel.name} takes: {known}")


def entry(config: KernelConfig) -> tuple[Callable[..., Any], Any]:
    """The launching function of a configuration and placeholder arguments of the right types.  Imports the DSL; raises `ConfigError`."""
    import cutlass

    kernel = kernel_of(config)
    zeros = [getattr(cutlass, kind)(0) for _, kind in kernel.arguments(config).arguments]
    return kernel.launcher(config), kernel.arguments_type(config)(*zeros)
