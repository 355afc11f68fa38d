"""Options that several commands share, and the problem and configuration they describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..config_error import require
from ..kernels.mega_moe.sm90.config import BLOCK_M as SM90_BLOCK_M
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import TIERS, Sm100Config
from ..presets import preset
from ..problem import MAX_RANKS, Problem, ProblemError

SHAPE, TILE = "Problem", "Configuration"


def either(values: Sequence[int]) -> str:
    """8, 16 or 32"""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}"


SM100_TILES, SM90_TILES = either([tier.block_m for tier in TIERS]), either(SM90_BLOCK_M)

Hidden = Annotated[int | None, typer.Option(help="Channels of x and y.", rich_help_panel=SHAPE)]
Intermediate = Annotated[int | None, typer.Option(help="Channels between the two linears.", rich_help_panel=SHAPE)]
Experts = Annotated[int | None, typer.Option(help="Experts over all ranks.", rich_help_panel=SHAPE)]
Topk = Annotated[int | None, typer.Option(help="Experts per token.", rich_help_panel=SHAPE)]
Ranks = Annotated[int | None, typer.Option(help="GPUs of the NVLink domain.", rich_help_panel=SHAPE)]
Clamp = Annotated[float | None, typer.Option(help="Activation clamp; none by default.", rich_help_panel=SHAPE)]
PresetName = Annotated[str | None, typer.Option("--preset", help="flash or pro; other options replace its fields.", rich_help_panel=SHAPE)]
BlockM = Annotated[int | None, typer.Option(help=f"Tokens of a tile: {SM100_TILES}. Chosen by default.", rich_help_panel=TILE)]
BlockMOfArch = Annotated[
    int | None,
    typer.Option("--block-m", help=f"Tokens of a tile: {SM100_TILES}; sm_90a: {SM90_TILES}. Chosen by default.", rich_help_panel=TILE),
]
Lookahead = Annotated[int | None, typer.Option(help="Experts that Linear1 is ahead of Linear2. Chosen by default.", rich_help_panel=TILE)]
Stages = Annotated[int | None, typer.Option(help="Depth of the TMA ring; the deepest by default.", rich_help_panel=TILE)]

Arch = Annotated[str, typer.Option("--arch", help="sm_100a (FP8 x FP4) or sm_90a (FP8 x FP8).", rich_help_panel=TILE)]
SM100, SM90 = "sm_100a", "sm_90a"
RECIPES = {SM100: "fp8xfp4", SM90: "fp8xfp8"}
SMS = {SM100: 148, SM90: 132}
"""SMs of the largest GPU of an architecture."""


def check_arch(arch: str) -> str:
    """Raises `ConfigError` with the known names."""
    require(arch in RECIPES, "arch", arch, "one of " + ", ".join(RECIPES))
    return arch


def build_problem(
    max_tokens_per_rank: int,
    *,
    preset_name: str | None = None,
    clamp: float | None = None,
    arch: str = SM100,
    **shape: int | None,
) -> Problem:
    """The problem of a preset with `shape` on top, or of `shape` alone.  Raises `ProblemError` for a missing or bad field."""
    given = {**given_only(shape), "recipe": RECIPES[check_arch(arch)]}
    if preset_name is not None:
        return preset(preset_name).problem(max_tokens_per_rank, activation_clamp=clamp, **given)
    for name in ("hidden", "intermediate", "num_experts", "topk"):
        if name not in given:
            raise ProblemError(name, None, "given, or taken from a --preset")
    fields: dict[str, Any] = {**given, "max_tokens_per_rank": max_tokens_per_rank, "activation_clamp": clamp}
    return Problem(**fields)


def build_config(problem: Problem, num_tokens: int, num_sms: int, **overrides: int | None) -> Sm100Config:
    """`Sm100Config.choose` with the overrides that were given.  Raises `ConfigError`."""
    return Sm100Config.choose(problem, num_tokens, num_sms=num_sms, **given_only(overrides))


def build_config_for(
    arch: str, problem: Problem, num_tokens: int, num_sms: int | None, **overrides: int | None
) -> Sm100Config | Sm90Config:
    """The configuration of an architecture's kernel, by default for its largest GPU.  Raises `ConfigError`."""
    num_sms = SMS[check_arch(arch)] if num_sms is None else num_sms
    if arch == SM90:
        return Sm90Config.choose(problem, num_tokens, num_sms=num_sms, **given_only(overrides))
    return build_config(problem, num_tokens, num_sms, **overrides)


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
