"""Options that several commands share, and the problem and configuration they describe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..arch import SM100, Arch
from ..kernels.mega_moe.family import MegaMoeKernel
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..kernels.registry import KERNELS, config_type, default_recipe, find_kernel
from ..presets import PRESETS, preset
from ..problem import MAX_RANKS, Problem, ProblemError
from ..target import ARCH_VARIABLE, Target, find_arch

SHAPE, TILE = "Problem", "Configuration"


def either(values: Sequence[object]) -> str:
    """8, 16 or 32"""
    *others, last = map(str, values)
    if not others:
        return last
    return f"{', '.join(others)} or {last}"


SM100_TILES, SM90_TILES = either(Sm100Config.tiles), either(Sm90Config.tiles)
RECIPE_NAMES = "; ".join(f"{arch}: {either(names)}" for arch, names in MegaMoeKernel.recipes.items())
KERNEL_NAMES = [kernel.name for kernel in KERNELS]

Hidden = Annotated[int | None, typer.Option(help="Channels of x and y.", rich_help_panel=SHAPE)]
Intermediate = Annotated[int | None, typer.Option(help="Channels between the two linears.", rich_help_panel=SHAPE)]
Experts = Annotated[int | None, typer.Option(help="Experts over all ranks.", rich_help_panel=SHAPE)]
Topk = Annotated[int | None, typer.Option(help="Experts per token.", rich_help_panel=SHAPE)]
Ranks = Annotated[int | None, typer.Option(help="GPUs of the NVLink domain.", rich_help_panel=SHAPE)]
Clamp = Annotated[float | None, typer.Option(help="Activation clamp; none by default.", rich_help_panel=SHAPE)]
PresetName = Annotated[
    str | None, typer.Option("--preset", help=f"{either(list(PRESETS))}; other options replace its fields.", rich_help_panel=SHAPE)
]
BlockM = Annotated[
    int | None,
    typer.Option("--block-m", help=f"Tokens of a tile: {SM100_TILES}; sm_90a: {SM90_TILES}. Chosen by default.", rich_help_panel=TILE),
]
Lookahead = Annotated[int | None, typer.Option(help="Experts that Linear1 is ahead of Linear2. Chosen by default.", rich_help_panel=TILE)]
Stages = Annotated[int | None, typer.Option(help="Depth of the TMA ring; the deepest by default.", rich_help_panel=TILE)]

ArchName = Annotated[
    str | None,
    typer.Option(
        "--arch", help="sm_100a (FP8 x FP4) or sm_90a (FP8 x FP8); by default what MEGAMOE_ARCH names, or sm_100a.", rich_help_panel=TILE
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", help=f"Number formats, {RECIPE_NAMES}; the first by default.", rich_help_panel=SHAPE),
]
KernelName = Annotated[str, typer.Option("--kernel", help=f"{either(KERNEL_NAMES)}.", rich_help_panel=TILE)]
DEFAULT_KERNEL = MegaMoeKernel.name


def asked_arch(arch: str | None) -> Arch:
    """The one that was given, else what `MEGAMOE_ARCH` names, else SM100.  Raises `ProblemError` with the known names."""
    if arch is not None:
        return find_arch(arch)
    return find_arch(os.environ.get(ARCH_VARIABLE) or SM100.name, ARCH_VARIABLE)


def build_problem(
    max_tokens_per_rank: int,
    *,
    preset_name: str | None = None,
    clamp: float | None = None,
    arch: Arch = SM100,
    recipe: str | None = None,
    **shape: int | None,
) -> Problem:
    """The problem of a preset with `shape` on top, or of `shape` alone, in these number formats or the usual ones of the architecture.

    Raises `ProblemError` for a missing or bad field.
    """
    given = {**given_only(shape), "recipe": recipe or default_recipe(find_kernel(DEFAULT_KERNEL), arch)}
    if preset_name is not None:
        return preset(preset_name).problem(max_tokens_per_rank, activation_clamp=clamp, **given)
    for name in ("hidden", "intermediate", "num_experts", "topk"):
        if name not in given:
            raise ProblemError(name, None, "given, or taken from a --preset")
    fields: dict[str, Any] = {**given, "max_tokens_per_rank": max_tokens_per_rank, "activation_clamp": clamp}
    return Problem(**fields)


def build_config(
    problem: Problem, num_tokens: int, arch: Arch, num_sms: int | None = None, kernel: str = DEFAULT_KERNEL, **overrides: int | None
) -> Any:
    """The configuration of an architecture's kernel, by default for the GPU that most people have of it (target.py).

    Raises `ConfigError`, and `ProblemError` for a kernel that is unknown or does not run on the architecture.
    """
    found = find_kernel(kernel)
    config_type(found, arch)
    return found.choose(problem, Target.typical(arch, num_sms), num_tokens, **given_only(overrides))


def given_only(options: dict[str, int | None]) -> dict[str, Any]:
    """Options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def parse_tokens(text: str, num_ranks: int) -> list[int]:
    """One number per rank, as in 13,7; a single number stands for every rank.  Raises `ProblemError`."""
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ProblemError("num_ranks", num_ranks, f"between 1 and {MAX_RANKS}")
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ProblemError("tokens", text, "numbers separated by commas") from None
    if len(counts) == 1:
        counts *= num_ranks
    if len(counts) != num_ranks:
        raise ProblemError("tokens", text, f"one number, or one for each of {num_ranks} ranks")
    if min(counts) < 0:
        raise ProblemError("tokens", text, "non-negative")
    return counts
