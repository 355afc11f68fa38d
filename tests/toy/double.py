"""A family of its own: all that the package asks of a kernel, in its smallest form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from megamoe_dsl.arch import ARCH_BY_NAME
from megamoe_dsl.config_error import CheckedConfig
from megamoe_dsl.kernels.kernel import Kernel
from megamoe_dsl.target import Target

if TYPE_CHECKING:
    from cutlass import Int32, Int64

THREADS = 32


@dataclass(frozen=True)
class Doubling:
    count: int


@dataclass(frozen=True)
class DoubleArguments:
    x: Int64
    y: Int64
    count: Int32


@dataclass(frozen=True)
class DoubleConfig(CheckedConfig):
    arch = ARCH_BY_NAME
    cluster: ClassVar[int] = 1
    num_threads: ClassVar[int] = THREADS

    problem: Doubling
    num_sms: int
    arch_name: str


class DoubleKernel(Kernel):
    name = "double"
    problem = Doubling
    configs: ClassVar[Mapping[str, type[Any]]] = {"sm_100a": DoubleConfig, "sm_90a": DoubleConfig}

    def choose(self, problem: Doubling, target: Target, num_tokens: int, **fields: Any) -> DoubleConfig:
        return DoubleConfig(problem, -(-problem.count // THREADS), target.arch.name)

    def function(self, config: DoubleConfig) -> Callable[..., Any]:
        from double_kernel import double_kernel

        return double_kernel

    def arguments_type(self, config: DoubleConfig) -> type[DoubleArguments]:
        return DoubleArguments
