"""Options of commands as typer reads them, and the problem and the configuration that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from ..activation import ACTIVATIONS
from ..arch import SM100, Arch
from ..config_error import parse_integer
from ..kernels.kernel import Kernel
from ..kernels.moe.family import MegaMoeKernel
from ..kernels.moe.sm90 import config as sm90
from ..kernels.moe.sm90.choose import given_pool_rows
from ..kernels.moe.sm100 import config as sm100
from ..kernels.registry import KERNELS, config_type, default_recipe, find_kernel
from ..options.option import Option, leave_out, naming, numbers, option, options_of
from ..options.points import PROBLEM, ShapeOptions
from ..presets import layer_problem, projection
from ..problem import MAX_RANKS, Problem, ProblemError
from ..target import ARCH_VARIABLE, Target, find_arch


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turns a function into a typer command: fields of the dataclass `kind`, which the function takes first, become options."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(run).parameters.values())[1:]
        hints = get_type_hints(run, include_extras=True)

        def command(**given: Any) -> None:
            options = kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})
            run(options, **given)

        parameters = [
            *(Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation(one)) for one in options_of(kind)),
            *(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own),
        ]
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def annotation(one: Option) -> Any:
    """The option's type, annotated for typer."""
    shown = True if one.shown is None else one.shown
    return Annotated[one.annotation, typer.Option(one.flag, help=one.text, rich_help_panel=one.panel, show_default=shown)]


OWN_OPTIONS = ("num_sms",)  # Fields that other options set, as --sms.
KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "int": (parse_integer, "an integer"),
    "str": (str, "text"),
    "bool": (lambda text: {"true": True, "false": False}.get(text.lower()), "true or false"),
}
"""By type of a field: a parser, which returns None for a bad value, and the words for what is allowed."""


def is_layer(kernel: Kernel) -> bool:
    return kernel.problem is Problem


def parse_fields(option: str, text: str | None, kind: type[Any]) -> dict[str, Any]:
    """Reads "n=4096,k=7168" as fields of the dataclass `kind`.  Raises `ProblemError` for unknown or repeated fields and bad values."""
    known = {one.name: str(one.type) for one in fields(kind) if str(one.type) in KINDS and one.name not in OWN_OPTIONS}
    found: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise ProblemError(option, part, f"FIELD=VALUE with one of {', '.join(known)}")
        if name in found:
            raise ProblemError(option, text, f"given with {name} once")
        read, allowed = KINDS[known[name]]
        if (number := read(value)) is None:
            raise ProblemError(name, value, allowed)
        found[name] = number
    return found


CONFIG = "Configuration"
DEFAULT_KERNEL = MegaMoeKernel.name


def either(values: Sequence[object]) -> str:
    """Lists the allowed values in words, as in "8, 16 or 32"."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


OTHERS = " or ".join(one.name for one in KERNELS if not is_layer(one))
OF_LAYERS = (
    *("hidden", "intermediate", "experts", "topk", "pool_rows", "combine"),
    *("ranks", "clamp", "activation", "biases", "weigh_results"),
)
TILE = ("block_m", "block_k", "lookahead", "stages")
RECIPES = "; ".join(f"{arch}: {either(names)}" for arch, names in MegaMoeKernel.recipes.items())
SM100_TILES, SM90_TILES = either(sm100.BLOCK_M), either(sm90.PACKED_BLOCK_M)


@dataclass(frozen=True)
class ConfigOptions(ShapeOptions):
    """A layer for an architecture, its ranks, and fields of the kernel's configuration that replace the chosen ones."""

    ranks: int | None = option(None, "GPUs of the NVLink domain.", PROBLEM)
    recipe: str | None = option(None, f"Number formats; {RECIPES}. The first by default.", PROBLEM)
    clamp: float | None = option(None, "Activation clamp; the activation's own by default: none but with swigluoai.", PROBLEM)
    activation: str | None = option(None, f"Activation of gate and up: {either(list(ACTIVATIONS))}. The first by default.", PROBLEM)
    biases: bool = option(False, "Every expert has a bias for each row of both linears.", PROBLEM)
    weigh_results: bool = option(False, "The top-k weight is applied to results, in combine, not to what Linear2 reads.", PROBLEM)
    block_m: int | None = option(None, f"Tokens of a tile: {SM100_TILES}; sm_90a: {SM90_TILES}. Chosen by default.", CONFIG)
    block_k: int | None = option(None, "Channels of a stage, 128 or 256 of tokens in E2M1. Chosen by default.", CONFIG)
    lookahead: int | None = option(None, "Experts that Linear1 is ahead of Linear2. Chosen by default.", CONFIG)
    stages: int | None = option(None, "Depth of the TMA ring; the deepest by default.", CONFIG)
    arch: str | None = option(None, "sm_100a (Blackwell) or sm_90a (Hopper); by default what MEGAMOE_ARCH names, or sm_100a.", CONFIG)

    @property
    def architecture(self) -> Arch:
        """That of --arch, else of `MEGAMOE_ARCH`, else SM100.  Raises `ProblemError` for an unknown name."""
        if self.arch is not None:
            return find_arch(self.arch)
        return find_arch(os.environ.get(ARCH_VARIABLE) or SM100.name, ARCH_VARIABLE)

    def problem(self, max_tokens_per_rank: int) -> Problem:
        """The layer; without --recipe in the architecture's default formats.  Raises `ProblemError` for a missing or bad field."""
        shape = {"hidden": self.hidden, "intermediate": self.intermediate, "num_experts": self.experts, "topk": self.topk}
        given = given_only({**shape, "num_ranks": self.ranks, "combine": self.combine, "activation": self.activation})
        given |= {"activation_clamp": self.clamp, "biases": self.biases, "weigh_results": self.weigh_results}
        given["recipe"] = default_recipe(find_kernel(DEFAULT_KERNEL), self.architecture) if self.recipe is None else self.recipe
        return layer_problem(self.preset, max_tokens_per_rank, **given)

    def config(self, problem: Problem, num_tokens: int, num_sms: int | None, kernel: str = DEFAULT_KERNEL) -> Any:
        """The kernel's configuration with the given fields, for the typical GPU of the architecture (target.py).  Raises `ConfigError`, and
        `ProblemError` for an unknown kernel and for a field that it does not have."""
        found, target = find_kernel(kernel), Target.typical(self.architecture, num_sms)
        tile = {"block_m": self.block_m, "block_k": self.block_k, "lookahead": self.lookahead, "num_stages": self.stages}
        given = given_only({**tile, "pool_rows": given_pool_rows(problem, self.pool_rows)})
        for name, value in given.items():
            if name not in found.choices(target.arch):
                raise ProblemError(name, value, f"left out with --kernel {kernel} for {target.arch}")
        return found.choose(problem, target, num_tokens, **given)


@dataclass(frozen=True)
class KernelOptions(ConfigOptions):
    """A kernel of the registry by name, its problem and fields of its configuration."""

    kernel: str = option(DEFAULT_KERNEL, f"{either([one.name for one in KERNELS])}.", CONFIG)
    fields: str | None = option(None, f"Problem of --kernel {OTHERS}, as in n=4096,k=7168; or --preset deepseek-v3/o.", PROBLEM)
    choices: str | None = option(None, f"Fields of the configuration of --kernel {OTHERS}, as in block_n=192,cluster=2.", CONFIG)

    @property
    def of_layer(self) -> bool:
        """Whether the kernel's problem is a MoE layer. Raises `ProblemError` for an option that does not go with the kernel."""
        layer = is_layer(find_kernel(self.kernel))
        leave_out(self, ("fields", "choices") if layer else (*OF_LAYERS, *TILE), f"--kernel {self.kernel}")
        return layer

    def other(self, rows: int, num_sms: int | None) -> Any:
        """The configuration of a kernel whose problem is not a MoE layer.  Raises `ProblemError` and `ConfigError`."""
        kernel = find_kernel(self.kernel)
        arch = self.architecture if self.arch or os.environ.get(ARCH_VARIABLE) else find_arch(next(iter(kernel.configs)))
        found = {} if self.preset is None else asdict(projection(self.preset).problem)
        if kernel.recipes:
            found["recipe"] = default_recipe(kernel, arch) if self.recipe is None else self.recipe
        elif self.recipe is not None:
            raise ProblemError("--recipe", self.recipe, f"left out with --kernel {self.kernel}")
        kind = config_type(kernel, arch)
        found |= parse_fields("--fields", self.fields, kernel.problem)
        needed = [one.name for one in fields(kernel.problem) if one.default is MISSING]
        if any(name not in found for name in needed):
            allowed = f"given with {', '.join(f'{one}=NUMBER' for one in needed)} of --kernel {kernel.name}"
            raise ProblemError("--fields", self.fields, allowed)
        return kernel.choose(kernel.problem(**found), Target.typical(arch, num_sms), rows, **parse_fields("--choices", self.choices, kind))


@dataclass(frozen=True)
class CompiledOptions(KernelOptions):
    """A kernel as it is compiled for a GPU."""

    tokens: int = option(128, "Tokens on every rank: chooses the tile.", PROBLEM)
    max_tokens: int | None = option(None, "Capacity of the buffers; --tokens by default.", PROBLEM)
    sms: int | None = option(None, "SMs of the GPU; 148 for sm_100a and 132 for sm_90a by default.", CONFIG)

    @property
    def chosen(self) -> Any:
        if not self.of_layer:
            return self.other(self.tokens, self.sms)
        capacity, option = (self.tokens, "--tokens") if self.max_tokens is None else (self.max_tokens, "--max-tokens")
        with naming({"max_tokens_per_rank": option}):
            return self.config(self.problem(capacity), self.tokens, self.sms, self.kernel)


DATA, SIMULATION = "Data", "Simulation"


@dataclass(frozen=True)
class SimulateOptions(KernelOptions):
    """A kernel, its data, and how it runs."""

    tokens: str = option("13", "Tokens of each rank, as in 13,7; one number for all.", DATA)
    seed: int = option(0, "Seed of the data and of the simulated schedule.", DATA)
    mask: float = option(0.0, "Fraction of top-k slots set to -1.", DATA)
    skew: bool = option(False, "Most tokens choose the same few experts.", DATA)
    random: bool = option(False, "Normal data within an error bound, not exact data.", DATA)
    sms: int = option(4, "CTAs of each rank; of mega_moe an even number.", SIMULATION)
    launches: int | None = option(
        None, "Launches on the same buffers, each with its own data; token counts move one rank on.", SIMULATION, shown="1"
    )
    no_race: bool = option(False, "Without the race detector: faster.", SIMULATION)
    yes: bool = option(False, "Start what is estimated to take more than an hour.", SIMULATION)

    @property
    def exact(self) -> bool:
        return not self.random

    @property
    def num_launches(self) -> int:
        return self.launches or 1

    def tokens_of(self, num_ranks: int) -> list[int]:
        """One number per rank; a single number stands for every rank.  Raises `ProblemError`."""
        if not 1 <= num_ranks <= MAX_RANKS:
            raise ProblemError("num_ranks", num_ranks, f"between 1 and {MAX_RANKS}")
        counts = numbers("tokens", self.tokens, 0)
        if len(counts) == 1:
            counts *= num_ranks
        if len(counts) != num_ranks:
            raise ProblemError("tokens", self.tokens, f"one number, or one for each of {num_ranks} ranks")
        return counts


def given_only(options: Mapping[str, int | str | None]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
