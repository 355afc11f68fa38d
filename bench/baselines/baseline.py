"""What a layer of another project is found by, and made from."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

from megamoe_dsl.activation import SILU
from megamoe_dsl.bench.point import Baseline
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights


def require_plain(problem: Problem) -> None:
    """What baselines compute.  Raises `ProblemError` for another activation, biases, and weights that combine applies."""
    for field, plain in (("activation", SILU), ("biases", False), ("weigh_results", False)):
        if getattr(problem, field) != plain:
            raise ProblemError(field, getattr(problem, field), f"{plain}: baselines have no other")


class LayerBaseline(Baseline, Protocol):
    """A layer of another project.

    PACKAGE  what it is imported as, and is found by in a folder of unpacked wheels
    RECIPE   number formats that it computes in, by name
    version  of that package
    """

    PACKAGE: ClassVar[str]
    RECIPE: ClassVar[str]

    def __init__(self, site: Path, problem: Problem, weights: ExpertWeights) -> None:
        """Imports the package from the folder `site`, and brings this rank's weights into its order."""
