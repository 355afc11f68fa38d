"""`megamoe layout`: pictures of memory, of the schedule and of a launch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..options.option import leave_out, option
from ..pictures import PICTURES, Picture, draw_trace, render, to_svg
from ..problem import ProblemError
from .options import ConfigOptions, takes
from .output_file import require_writable_files, write_whole

DEFAULT_PRESET, DEFAULT_TOKENS = "flash", 128
TIMELINE = "timeline"
What = Enum("What", {name: name for name in (*PICTURES, TIMELINE)}, type=str)  # type: ignore[misc]
OF_A_TRACE = ("preset", "ranks", "tokens", "trace", "svg")  # Options of a trace's point and picture.


@dataclass(frozen=True)
class LayoutOptions(ConfigOptions):
    """A layer, or a trace of one, and where its picture goes."""

    tokens: int | None = option(None, "Tokens of every rank; also the capacity of the buffers.", shown=str(DEFAULT_TOKENS))
    sms: int | None = option(None, "CTAs of the grid; 148 for sm_100a and 132 for sm_90a by default.")
    trace: Path | None = option(None, "timeline: of this file that `bench --trace` wrote; --preset, --tokens and --ranks name its point.")
    svg: Path | None = option(None, "Write the picture to this file instead.")


@takes(LayoutOptions)
def layout(given: LayoutOptions, what: Annotated[What, typer.Argument(help="What to draw.", show_choices=True)]) -> None:
    """Draw a buffer, an on-chip plan, an order, the schedule or a launch; of the flash preset unless another problem is given."""
    console = Console()
    require_writable_files({"--svg": given.svg})
    if given.trace is not None:
        if what.value != TIMELINE:
            raise ProblemError("--trace", what.value, f"given with {TIMELINE} only")
        own = (one.name for one in fields(given) if one.name not in OF_A_TRACE)  # a trace has a configuration of its own
        leave_out(given, own, "--trace, which is of a launch that was")
        picture = draw_trace(given.trace, preset=given.preset, tokens=given.tokens, ranks=given.ranks)
    elif what.value == TIMELINE:
        raise ProblemError("--trace", None, f"given with {TIMELINE}; a file that `megamoe bench --trace` wrote")
    else:
        if given.preset is None and given.hidden is None:
            given = replace(given, preset=DEFAULT_PRESET)
        num_tokens = DEFAULT_TOKENS if given.tokens is None else given.tokens
        picture = PICTURES[what.value](given.config(given.problem(num_tokens), num_tokens, given.sms), num_tokens)
    show(console, picture, given.svg)


def show(console: Console, picture: Picture, svg: Path | None) -> None:
    if svg is None:
        console.print(render(picture, console.width))
    else:
        write_whole(svg, to_svg(picture))
        console.print(f"{picture.title}: {svg}", soft_wrap=True, markup=False)
