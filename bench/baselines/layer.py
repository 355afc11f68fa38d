"""A layer that has another project's beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baselines import LayerBaseline, baseline_recipe, load_baseline
from megamoe_dsl.bench.point import Layer
from megamoe_dsl.options.option import option
from megamoe_dsl.problem import Problem


def baseline_option() -> Any:
    """A field of a dataclass of options."""
    return option(None, "Folder with the baseline's unpacked wheels.")


class LayerBeside(Layer):
    """Its weights are the baseline's too; expanded, where that computes in another recipe.

    site            folder of the baseline, or None
    baseline_error  why there is none, where one was asked for: what fails on one rank fails on all, as a library that does not load
    """

    def __init__(self, problem: Problem, site: str | Path | None) -> None:
        super().__init__(problem)
        self.baseline: LayerBaseline | None = None
        self.baseline_error: str | None = None
        if site is not None:
            try:
                self.baseline = load_baseline(Path(site), problem, self.weights_for(baseline_recipe(problem.recipe)))
            except Exception as error:
                self.baseline_error = repr(error)[:300]
