"""`megamoe layout`: pictures of memory and of the schedule."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..pictures import PICTURES, render, to_svg
from .errors import one_line_errors
from .shape import BlockM, Clamp, Experts, Hidden, Intermediate, Lookahead, PresetName, Ranks, Stages, Topk, build_config, build_problem

What = Enum("What", {name: name for name in PICTURES}, type=str)  # type: ignore[misc]
DEFAULT_PRESET = "flash"


def layout(
    what: Annotated[What, typer.Argument(help="What to draw.", show_choices=True)],
    preset: PresetName = None,
    hidden: Hidden = None,
    intermediate: Intermediate = None,
    experts: Experts = None,
    topk: Topk = None,
    ranks: Ranks = None,
    clamp: Clamp = None,
    tokens: Annotated[int, typer.Option(help="Tokens of every rank; also the capacity of the buffers.", min=1)] = 128,
    block_m: BlockM = None,
    lookahead: Lookahead = None,
    stages: Stages = None,
    sms: Annotated[int, typer.Option(help="CTAs of the grid, an even number.")] = 148,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file instead.", metavar="FILE")] = None,
) -> None:
    """Draw a buffer, an on-chip plan, an order or the schedule; of the flash preset unless another problem is given."""
    console = Console()
    with one_line_errors():
        if preset is None and hidden is None:
            preset = DEFAULT_PRESET
        problem = build_problem(
            tokens,
            preset_name=preset,
            clamp=clamp,
            hidden=hidden,
            intermediate=intermediate,
            num_experts=experts,
            topk=topk,
            num_ranks=ranks,
        )
        config = build_config(problem, tokens, sms, block_m=block_m, lookahead=lookahead, num_stages=stages)
        picture = PICTURES[what.value](config, tokens)
        if svg is None:
            console.print(render(picture, console.width))
        else:
            svg.write_text(to_svg(picture), encoding="utf-8")
            console.print(f"{picture.title}: {svg}", soft_wrap=True)
