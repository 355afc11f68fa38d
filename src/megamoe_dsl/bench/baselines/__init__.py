"""Other projects' kernels on this project's inputs, timed in the same run."""

from __future__ import annotations

from pathlib import Path

from ...problem import Problem, ProblemError
from ...quant import ExpertWeights
from .baseline import Baseline
from .deep_gemm import DeepGemm

BASELINES: tuple[type[Baseline], ...] = (DeepGemm,)
"""In the order in which they are looked for."""


def find_baseline(site: Path) -> type[Baseline]:
    """The one whose package is unpacked in a folder.  Raises `ProblemError` where none is."""
    for kind in BASELINES:
        if (site / kind.PACKAGE).is_dir():
            return kind
    raise ProblemError(
        "baseline", str(site), f"a folder with unpacked wheels, {' or '.join(kind.PACKAGE for kind in BASELINES)} among them"
    )


def load_baseline(site: Path, problem: Problem, weights: ExpertWeights) -> Baseline:
    """A layer of the baseline in a folder.  Raises `ProblemError` where none is, and what its package raises."""
    return find_baseline(site)(site, problem, weights)


__all__ = ["BASELINES", "Baseline", "find_baseline", "load_baseline"]
