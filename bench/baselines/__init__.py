"""Other projects' kernels on this project's inputs, timed in the same run."""

from __future__ import annotations

from pathlib import Path

from baselines.baseline import LayerBaseline
from baselines.deep_gemm import DeepGemm, DeepGemmSm100
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights

BASELINES: tuple[type[LayerBaseline], ...] = (DeepGemm, DeepGemmSm100)
"""In the order in which they are looked for."""
STANDS_FOR = {"fp8xmxfp4": "fp8xfp8"}
"""What a baseline computes in beside a recipe that none has: the same weights, expanded."""


def baseline_recipe(recipe: str) -> str:
    """What a baseline computes in beside a layer of these number formats.  Raises `ProblemError` where none does."""
    found = STANDS_FOR.get(recipe, recipe)
    if found not in {kind.RECIPE for kind in BASELINES}:
        raise ProblemError("baseline", recipe, f"left out: baselines compute {' and '.join(kind.RECIPE for kind in BASELINES)}")
    return found


def find_baseline(site: Path, recipe: str | None = None) -> type[LayerBaseline]:
    """The one whose package is unpacked in a folder, for a layer of a recipe.  Raises `ProblemError` where none is."""
    wanted = None if recipe is None else baseline_recipe(recipe)
    for kind in BASELINES:
        if (site / kind.PACKAGE).is_dir() and wanted in (None, kind.RECIPE):
            return kind
    raise ProblemError(
        "baseline", str(site), f"a folder with unpacked wheels, {' or '.join({kind.PACKAGE: 0 for kind in BASELINES})} among them"
    )


def load_baseline(site: Path, problem: Problem, weights: ExpertWeights) -> LayerBaseline:
    """A layer of the baseline in a folder; `weights` in the formats of `baseline_recipe`.  Raises `ProblemError` where none is, and what
    its package raises."""
    return find_baseline(site, problem.recipe)(site, problem, weights)


__all__ = ["BASELINES", "LayerBaseline", "baseline_recipe", "find_baseline", "load_baseline"]
