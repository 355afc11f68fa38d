"""Options of `python bench/fuzz.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from megamoe_dsl.options.option import option

WAYS = ("eager", "graph", "compiled", "trained", "quantized")
"""Ways to call `moe`: eagerly; in a CUDA graph; under `torch.compile`; with gradients; with BF16 weights that the call quantizes."""


@dataclass(frozen=True)
class FuzzOptions:
    """How long, where, and what."""

    minutes: float = option(1.0, "How long each process draws; shrinking a failure takes up to two minutes more.")
    seed: int = option(0, "The same seed draws the same trials.")
    gpu: bool = option(False, "On this host's GPU, one rank; else on simulated ranks of both architectures.")
    way: str | None = option(None, f"Only calls of moe, each in this way: {', '.join(WAYS)}.")
    repeat: str | None = option(None, "One trial, as a failure prints it, instead of drawing any.")
    artifacts: Path = option(Path(".megamoe"), "With --gpu, folder of compiled kernels.")
    jobs: int = option(1, "Processes, each with trials of its own; with --gpu they share the GPU, and compile at the same time.")
