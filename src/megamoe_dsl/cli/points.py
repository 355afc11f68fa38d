"""Options that name points to time (bench/points.py): presets, tokens per rank, GPUs."""

from __future__ import annotations

from typing import Annotated

import typer

POINTS, RUN = "Points", "Run"

PresetNames = Annotated[str, typer.Option("--preset", help="flash or pro, or both with a comma.", rich_help_panel=POINTS)]
TokenCounts = Annotated[str, typer.Option("--tokens", help="Tokens per rank, as in 8,64,512.", rich_help_panel=POINTS)]
RankCounts = Annotated[str, typer.Option("--ranks", help="GPUs, as in 8 or 2,4,8.", rich_help_panel=POINTS)]
ExpertsPerRank = Annotated[
    int | None, typer.Option(help="Instead of the preset's: 32 of flash on one rank are its share of eight.", rich_help_panel=POINTS)
]
RemoteFraction = Annotated[
    float | None,
    typer.Option(help="Fraction of the slots for other ranks' experts: 0.875 is eight ranks' NVLink traffic.", rich_help_panel=POINTS),
]
