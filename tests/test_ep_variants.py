"""Variants of the expert-parallel kernels beside one another (bench/ep.py): where they write, and which of them are wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from halves.bits import SMALL
from halves.run import algorithm_bandwidth
from megamoe_dsl.bench import ep as bench
from megamoe_dsl.bench.ep import Variant, bind_variants
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.target import Target

TARGET = Target.typical("sm_90a")
WRONG = "combine cluster=1"
SAVING, SORTING = "dispatch token_saving=off", "dispatch token_sorting=off"
NAMES = (SAVING, SORTING, "dispatch block_wise=off", "combine scatter=off", WRONG)


@dataclass
class HostKernel:
    """Writes a y of ones where it points, another one if it is `wrong`."""

    wrong: bool
    y: torch.Tensor | None = None

    def launch(self) -> None:
        assert self.y is not None
        self.y.fill_(2.0 if self.wrong else 1.0)


@dataclass
class HostLayer:
    """As much of an `EpMoE` as variants need."""

    dispatch_config: DispatchGemmConfig
    problem: Any = SMALL
    symmetric: Any = None
    bound: dict[str, HostKernel] = field(default_factory=dict)

    def bind(self, name: str) -> HostKernel:
        return self.bound.setdefault(name, HostKernel(name == WRONG))

    def point_at(self, kernel: HostKernel, y: torch.Tensor) -> None:
        kernel.y = y

    def synchronize(self) -> None:
        pass


def test_they_write_where_the_caller_keeps_y_and_wrong_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: Variant(name).config(SMALL, TARGET) for name in NAMES}
    names = {id(config): name for name, config in configs.items()}
    chosen = Variant("dispatch").config(SMALL, TARGET)
    assert isinstance(chosen, DispatchGemmConfig)
    cleared: list[Any] = []
    monkeypatch.setattr(bench, "clear_counters", cleared.append)
    layer, y = HostLayer(chosen), torch.ones(4, 8)
    store = SimpleNamespace(load=lambda config, any_sources: names[id(config)])
    found, differing = bind_variants({SMALL.recipe: layer}, store, configs, {SMALL.recipe: y})  # type: ignore[dict-item, arg-type]
    assert differing == [WRONG]
    assert set(configs) - set(found) == {SAVING, SORTING}
    combines = [name for name in configs if name.startswith("combine")]
    assert len(cleared) == len(combines)
    assert all(layer.bound[name].y is y for name in combines)


def test_algorithm_bandwidth_is_that_of_all_pairs() -> None:
    """Those of 8192 tokens of Flash in docs/lab/halves.md, whether they crossed or not."""
    flash = PRESETS["flash"].problem(8192, recipe="fp8xfp8")
    assert round(algorithm_bandwidth(flash, {"pairs": 49342, "fetched": 32608}, 500.0)) == 404
