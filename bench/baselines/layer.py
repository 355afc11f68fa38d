"""A layer that has another project's beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines import LayerBaseline, baseline_recipe, load_baseline
from baselines.baseline import BASELINE
from difference import relative_difference
from megamoe_dsl.bench.point import SEED, Layer, Point
from megamoe_dsl.bench.timing import run_earlier_batches, synchronize
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


class Beside:
    """A baseline that takes turns with the kernels of a point; all ranks together."""

    def __init__(self, point: Point, baseline: LayerBaseline) -> None:
        self.point, self.baseline = point, baseline
        self.differences: dict[str, float] = {}

    def launches(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, Callable[[], None]]:
        """Its launch on the point's tokens, after other batches, as `measure_point` takes it; compares y of the kernels with its own."""
        y, inputs = torch.empty_like(next(iter(outputs.values()))), self.point.draw(SEED)
        launch = partial(self.baseline, y)
        self.baseline.allocate(self.point.problem)
        run_earlier_batches(self.point.draw, self.baseline.load, [launch])
        self.baseline.load(inputs)
        launch()
        synchronize()
        self.differences = {name: relative_difference(own, y) for name, own in outputs.items()}
        return {BASELINE: launch}

    def enter(self, record: dict[str, Any]) -> None:
        """Says in the record of `measure_point` what the baseline is, its times, and how far it is from each kernel; frees its buffer."""
        variants, best = record["variants"], record["best"]
        theirs = {"version": self.baseline.version, "symmetric_bytes": self.baseline.num_bytes, **variants.pop(BASELINE)}
        record["baseline"] = theirs
        for name, difference in self.differences.items():
            variants[name]["difference_to_baseline"] = difference
        best["ratio"] = theirs["us"]["median"] / best["us"]
        if best["graph_us"]:
            best["graph_ratio"] = theirs["graph_us"]["median"] / best["graph_us"]
        self.baseline.free()
