"""Options that name points to time, and options of a run on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..kernels.registry import find_kernel
from ..presets import PRESETS as TABLE
from ..recipe import BF16, COMBINE
from .option import option

PROBLEM = "Problem"  # The heading that options of a problem are listed under.


@dataclass(frozen=True)
class ShapeOptions:
    """A preset, whose fields other options replace; or a shape without a preset, which needs hidden, intermediate, experts and topk."""

    preset: str | None = option(None, f"A shape by name: {', '.join(TABLE)}; other options replace its fields.", PROBLEM)
    hidden: int | None = option(None, "Channels of x and y.", PROBLEM)
    intermediate: int | None = option(None, "Channels between the two linears.", PROBLEM)
    experts: int | None = option(None, "Experts over all ranks.", PROBLEM)
    topk: int | None = option(None, "Experts per token.", PROBLEM)
    pool_rows: int | None = option(
        None, "Rows of the token pool; fewer than any routing takes are a ring (sm_90a), 0 chooses.", PROBLEM, "all"
    )
    combine: str | None = option(None, f"Element in which results travel back: {' or '.join(COMBINE)}.", PROBLEM, BF16)


PRESETS = f"Shapes by name, as in flash,pro, of {', '.join(TABLE)}; the options of a shape replace their fields."
TOKENS = "Tokens per rank, as in 8,64,512."
RECIPES = find_kernel("mega_moe").recipes
FORMATS = "; ".join(f"{' or '.join(names)} on {arch}" for arch, names in RECIPES.items())


@dataclass(frozen=True)
class PointOptions(ShapeOptions):
    """Points: all combinations of presets, ranks and tokens; `DEFAULT_PRESETS` where neither a preset nor a shape is given."""

    DEFAULT_PRESETS: ClassVar[str] = "flash"

    preset: str | None = option(None, PRESETS, PROBLEM, DEFAULT_PRESETS)
    experts_per_rank: int | None = option(
        None, "Experts of each rank, instead of all: 32 of flash on one rank are its share of eight.", PROBLEM
    )
    recipe: str = option(RECIPES["sm_90a"][0], f"Number formats: {FORMATS}.", PROBLEM)
    tokens: str = option("8,64,512,2048,8192", TOKENS, PROBLEM)
    ranks: str = option("8", "GPUs, as in 8 or 2,4,8.", PROBLEM)


@dataclass(frozen=True)
class RunOptions(PointOptions):
    """Where kernels come from and results go."""

    remote: float | None = option(None, "Fraction of the slots for other ranks' experts: 0.875 is eight ranks' NVLink traffic.", PROBLEM)
    artifacts: Path = option(Path(".megamoe"), "Folder of compiled kernels.")
    watchdog_ms: int = option(5000, "Limit of every wait in a kernel, in milliseconds.")
    out: Path = option(Path("bench/results"), "Folder of the JSON files.")


@dataclass(frozen=True)
class BenchOptions(RunOptions):
    """Options of `megamoe bench` besides the points."""

    variants: bool = option(False, "Time every kernel in the folder that fits a point.")
    no_graphs: bool = option(False, "Back-to-back launches only.")
    trace: bool = option(False, "Where the time of a launch goes, from a traced kernel, instead of timing.")


@dataclass(frozen=True)
class TuneOptions(RunOptions):
    """Options of `megamoe tune` besides the points."""

    DEFAULT_PRESETS = "flash,pro"

    preset: str | None = option(None, PRESETS, PROBLEM, DEFAULT_PRESETS)
    tokens: str = option(",".join(str(1 << n) for n in range(14)), TOKENS, PROBLEM)
    compile_only: bool = option(False, "Only make the kernels.")
