"""`megamoe layout`: pictures of memory, of the schedule and of a launch."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..pictures import PICTURES, Picture, draw_trace, render, to_svg
from ..problem import ProblemError
from .errors import one_line_errors
from .output_file import require_writable_file, write_whole
from .shape import (
    DEFAULT_KERNEL,
    ArchName,
    BlockM,
    Clamp,
    Experts,
    Hidden,
    Intermediate,
    Lookahead,
    PresetName,
    Ranks,
    RecipeName,
    Stages,
    Topk,
    asked_arch,
    build_config,
    build_problem,
)

What = Enum("What", {name: name for name in PICTURES}, type=str)  # type: ignore[misc]
DEFAULT_PRESET = "flash"
TIMELINE = "timeline"


def layout(
    what: Annotated[What, typer.Argument(help="What to draw.", show_choices=True)],
    preset: PresetName = None,
    hidden: Hidden = None,
    intermediate: Intermediate = None,
    experts: Experts = None,
    topk: Topk = None,
    ranks: Ranks = None,
    clamp: Clamp = None,
    recipe: RecipeName = None,
    tokens: Annotated[int, typer.Option(help="Tokens of every rank; also the capacity of the buffers.", min=1)] = 128,
    block_m: BlockM = None,
    lookahead: Lookahead = None,
    stages: Stages = None,
    arch: ArchName = None,
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
    with one_line_errors():
        require_writable_file("--svg", svg)
        if preset is None and hidden is None:
            preset = DEFAULT_PRESET
        shape = {"hidden": hidden, "intermediate": intermediate, "num_experts": experts, "topk": topk}
        tile = {"block_m": block_m, "lookahead": lookahead, "num_stages": stages}
        if trace is not None:
            require_no_config(what.value, {**shape, **tile, "clamp": clamp, "sms": sms})
            picture = draw_trace(trace, preset=preset, tokens=tokens, ranks=ranks)
        else:
            architecture = asked_arch(arch)
            problem = build_problem(tokens, preset_name=preset, clamp=clamp, arch=architecture, recipe=recipe, num_ranks=ranks, **shape)
            picture = PICTURES[what.value](build_config(problem, tokens, architecture, sms, DEFAULT_KERNEL, **tile), tokens)
        show(console, picture, svg)


def require_no_config(what: str, options: dict[str, int | float | None]) -> None:
    """A trace has a configuration of its own.  Raises `ProblemError` for another picture and for an option that was given."""
    if what != TIMELINE:
        raise ProblemError("--trace", what, f"given with {TIMELINE} only")
    for name, value in options.items():
        if value is not None:
            option = {"num_experts": "experts", "num_stages": "stages"}.get(name, name).replace("_", "-")
            raise ProblemError(f"--{option}", value, "left out with --trace, which is of a launch that was")


def show(console: Console, picture: Picture, svg: Path | None) -> None:
    """In the terminal, or as a file."""
    if svg is None:
        console.print(render(picture, console.width))
    else:
        write_whole(svg, to_svg(picture))
        console.print(f"{picture.title}: {svg}", soft_wrap=True)
