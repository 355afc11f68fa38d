"""`megamoe layout`: pictures of memory, of the schedule and of a launch."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..options.option import options_of
from ..pictures import PICTURES, Picture, draw_trace, render, to_svg
from ..problem import ProblemError
from .options import ConfigOptions, takes
from .output_file import require_writable_files, write_whole

DEFAULT_PRESET, DEFAULT_TOKENS = "flash", 128
TIMELINE = "timeline"
What = Enum("What", {name: name for name in (*PICTURES, TIMELINE)}, type=str)  # type: ignore[misc]
OF_A_TRACE = ("preset", "ranks")  # Options that say which point of a trace is meant.


@takes(ConfigOptions)
def layout(
    given: ConfigOptions,
    what: Annotated[What, typer.Argument(help="What to draw.", show_choices=True)],
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of every rank; also the capacity of the buffers.", min=1, show_default=str(DEFAULT_TOKENS))
    ] = None,
    sms: Annotated[int | None, typer.Option(help="CTAs of the grid; 148 for sm_100a and 132 for sm_90a by default.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="timeline: of this file that `bench --trace` wrote; --preset, --tokens and --ranks name its point.", metavar="FILE"
        ),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file instead.", metavar="FILE")] = None,
) -> None:
    """Draw a buffer, an on-chip plan, an order, the schedule or a launch; of the flash preset unless another problem is given."""
    console = Console()
    require_writable_files({"--svg": svg})
    if trace is not None:
        require_no_config(what.value, given, sms)
        picture = draw_trace(trace, preset=given.preset, tokens=tokens, ranks=given.ranks)
    elif what.value == TIMELINE:
        raise ProblemError("--trace", trace, f"given with {TIMELINE}; `megamoe predict --svg` draws a launch that nobody has measured")
    else:
        if given.preset is None and given.hidden is None:
            given = replace(given, preset=DEFAULT_PRESET)
        num_tokens = tokens or DEFAULT_TOKENS
        picture = PICTURES[what.value](given.config(given.problem(num_tokens), num_tokens, sms), num_tokens)
    show(console, picture, svg)


def require_no_config(what: str, given: ConfigOptions, sms: int | None) -> None:
    """A trace has a configuration of its own.  Raises `ProblemError` for another picture and for an option that was given."""
    if what != TIMELINE:
        raise ProblemError("--trace", what, f"given with {TIMELINE} only")
    options = {one.flag: (getattr(given, one.name), one.default) for one in options_of(ConfigOptions) if one.name not in OF_A_TRACE}
    for flag, (value, default) in {**options, "--sms": (sms, None)}.items():
        if value != default:
            raise ProblemError(flag, value, "left out with --trace, which is of a launch that was")


def show(console: Console, picture: Picture, svg: Path | None) -> None:
    if svg is None:
        console.print(render(picture, console.width))
    else:
        write_whole(svg, to_svg(picture))
        console.print(f"{picture.title}: {svg}", soft_wrap=True)
