"""Options of `megamoe fuzz` and of bench/fuzz.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .option import option


@dataclass(frozen=True)
class FuzzOptions:
    """How long, where, and what."""

    minutes: float = option(1.0, "How long; shrinking a failure takes up to two minutes more.")
    seed: int = option(0, "Of what is drawn: the same seed draws the same trials.")
    gpu: bool = option(False, "On this host's GPU, one rank; else on simulated ranks of both architectures.")
    repeat: str | None = option(None, "One trial, as a failure prints it, instead of drawing any.")
    artifacts: Path = option(Path(".megamoe"), "With --gpu, folder of compiled kernels.")
    jobs: int = option(8, "With --gpu, processes that compile.")
