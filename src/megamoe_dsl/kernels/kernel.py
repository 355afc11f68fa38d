"""The protocol of a kernel family: what it declares once, in one class, and the package asks for; a launch's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, make_dataclass
from functools import cache
from inspect import getfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from ..arch import Arch
from ..config_error import CheckedConfig
from ..hardware.tensor_map import TensorMap
from ..lazy import find
from ..sass.listing import Listing
from ..sass.measurer import Measure, Measurer
from ..target import Target

WIDTHS = {"Int32": 4, "Int64": 8, "TensorMap": 128}
"""Bytes of each argument type of the DSL; pointers are 64-bit addresses.  Only kernels take tensor maps; launching functions make them."""


@dataclass(frozen=True)
class ArgumentSpec:
    """Name and type of each argument, in the order of a launch.  Types are read as text, so that a machine needs no DSL."""

    arguments: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, declared: type[Any]) -> ArgumentSpec:
        """Raises TypeError for a field of another type."""
        found = tuple((one.name, one.type if isinstance(one.type, str) else one.type.__name__) for one in fields(declared))
        for name, kind in found:
            if kind not in WIDTHS:
                raise TypeError(f"{declared.__name__}.{name}: {kind}, must be one of {', '.join(WIDTHS)}")
        return cls(found)

    names = property(lambda self: tuple(name for name, _ in self.arguments))
    widths = property(lambda self: tuple(WIDTHS[kind] for _, kind in self.arguments))  # bytes

    def pack(self, **values: int) -> tuple[int, ...]:
        """Values by name, in the order of a launch.  Raises TypeError for a name too many or too few."""
        if values.keys() != set(self.names):
            odd = sorted(values.keys() ^ set(self.names))
            raise TypeError(f"arguments {', '.join(odd)}: must be exactly {', '.join(self.names)}")
        return tuple(values[name] for name in self.names)


@cache
def with_fields(declared: Any, *always: str, **there: object) -> Any:
    """The arguments of a launch: fields of `declared` without a default, the `always` named ones, and those that are true in `there`."""
    kept = [(one.name, one.type) for one in fields(declared) if one.default is MISSING or one.name in always or there.get(one.name)]
    return make_dataclass(declared.__name__, kept, frozen=True, namespace={"__module__": __name__})


KernelConfig = CheckedConfig
Measures = Callable[[Measurer], list[Measure]]


class Kernel:
    """One family.  A subclass lies in the family's folder, and `registry.KERNELS` has an instance of it."""

    name: ClassVar[str]  # in commands and messages
    problem: ClassVar[type[Any]]  # class of its problems, a frozen dataclass
    configs: ClassVar[Mapping[str, type[Any]]]  # its configuration classes, by architecture name
    # names of the number formats (recipe.py) it takes on each architecture, the usual one first; empty where it has no choice
    recipes: ClassVar[Mapping[str, Sequence[str]]] = {}
    resident: ClassVar[bool] = False  # whether all CTAs must run at once, because they wait for one another
    ctas_per_sm: ClassVar[int] = 1  # CTAs of a launch that an SM can hold, at least, which ptxas is told; 0: it is told nothing
    code: ClassVar[str]  # `module.function` in the family's folder: the `cute.kernel`, or what becomes one that takes tensor maps
    takes_arguments: ClassVar[type[Any]]  # dataclass of its run-time arguments, where it is the same for all configurations
    per_sm: ClassVar[int] = 0  # CTAs of a grid for each SM of the target, where nothing else says how many it has
    measured: ClassVar[Mapping[str, Measures]] = {}  # by architecture name
    early: ClassVar[bool] = False  # whether a launch may begin before the one before it has ended, because it waits for that itself

    def has(self, config: object) -> bool:
        return type(config) in self.configs.values() and type(getattr(config, "problem", None)) is self.problem

    def choices(self, arch: Arch) -> set[str]:
        """Names of the fields that `choose` takes for an architecture that the kernel is written for."""
        return {one.name for one in fields(self.configs[arch.name])}

    # --- what every kernel has
    def choose(self, problem: Any, target: Target, num_tokens: int, **fields: Any) -> Any:
        """The configuration for up to `num_tokens` tokens on every rank; `fields` replace what is chosen.  Raises `ConfigError`.  Where a
        family does not say otherwise, it is the same for every number of tokens."""
        problem.check_num_tokens(num_tokens)
        grid = {"num_sms": self.per_sm * target.num_sms} if self.per_sm else {}
        return self.configs[target.arch.name](problem, **{"arch_name": target.arch.name, **grid, **fields})

    def function(self, config: Any) -> Callable[..., Any]:
        """The `cute.kernel` of (configuration, *tensor maps, arguments).  Imports the DSL."""
        from ..device.launch import kernel_with_maps

        found, names = find(self.code_of(config), type(self).__module__.rpartition(".")[0]), tuple(config.map_names)
        return kernel_with_maps(found, names) if names else found

    def code_of(self, config: Any) -> str:
        return self.code

    def arguments_type(self, config: Any) -> type[Any]:
        return self.takes_arguments

    # --- what a kernel may have
    def label(self, config: Any) -> str:
        return self.name

    def facts(self, config: Any) -> list[tuple[str, object]]:
        """What tables say of a configuration: what it says itself, its grid, and registers of warps that ask for them."""
        grid = ("grid", f"{config.num_sms} CTAs of {config.num_threads} threads, clusters of {config.cluster}")
        budgets = ", ".join(f"{group} {count}" for group, count in config.registers.items())
        return [*getattr(config, "facts", ()), grid, *([("register budgets", budgets)] if budgets else [])]

    def measures(self, config: Any, listing: Listing) -> list[Measure]:
        """Instructions of each role per unit of its work, of the GEMM where the kernel has one.  Raises `InspectionError`."""
        measure = self.measured.get(config.arch.name)
        return measure(Measurer(getattr(config, "gemm", config), listing)) if measure else []

    # --- what follows
    def launcher(self, config: Any) -> Callable[..., Any]:
        """The host function of (configuration, arguments, stream) that launches the kernel.  Imports the DSL."""
        from ..device.launch import launcher

        return launcher(self.function(config), self.arguments_type(config), type(config).maps, self.ctas_per_sm)

    def parameters(
        self, config: Any, arguments: Mapping[str, int], encode: Callable[[TensorMap], bytes] = TensorMap.encode
    ) -> tuple[int | bytes, ...]:
        """What the kernel takes when the launching function is called with these arguments: the encoded tensor maps, then the arguments.
        Raises TypeError for a name too many or too few, ValueError for an address or a stride that TMA does not take."""
        values = self.arguments(config).pack(**arguments)
        return (*(encode(one.tensor_map) for one in config.maps(SimpleNamespace(**arguments))), *values)

    def parameter_spec(self, config: Any) -> ArgumentSpec:
        return ArgumentSpec((*((f"{name}_map", "TensorMap") for name in config.map_names), *self.arguments(config).arguments))

    def arguments(self, config: Any) -> ArgumentSpec:
        return ArgumentSpec.of(self.arguments_type(config))

    @property
    def sources(self) -> tuple[Path, ...]:
        """Files and folders that decide what a compiled kernel is, besides this package's: the folder of a family that lies elsewhere."""
        return (Path(getfile(type(self))).parent,)

    def dynamic_smem(self, config: Any) -> int:
        return config.smem.region.size if config.smem else 0
