"""The options that give a layer's shape, by name or in numbers: those of every command that takes one."""

from __future__ import annotations

from dataclasses import dataclass

from ..presets import PRESETS
from ..recipe import BF16, COMBINE
from .option import option

PROBLEM = "Problem"
"""The heading that options of a problem are listed under."""


@dataclass(frozen=True)
class ShapeOptions:
    """A preset, with every other field that is given in its place; or a shape without a preset, which needs them all."""

    preset: str | None = option(None, f"A shape by name: {', '.join(PRESETS)}; other options replace its fields.", PROBLEM)
    hidden: int | None = option(None, "Channels of x and y.", PROBLEM)
    intermediate: int | None = option(None, "Channels between the two linears.", PROBLEM)
    experts: int | None = option(None, "Experts over all ranks.", PROBLEM)
    topk: int | None = option(None, "Experts per token.", PROBLEM)
    pool_rows: int | None = option(
        None, "Rows of the token pool; fewer than any routing takes are a ring (sm_90a), 0 chooses.", PROBLEM, "all"
    )
    combine: str | None = option(None, f"Element in which results travel back: {' or '.join(COMBINE)}.", PROBLEM, BF16)
