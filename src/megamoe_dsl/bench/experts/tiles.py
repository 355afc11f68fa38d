"""Linear2 alone by tiles, with rows as a router deals them: what is chosen, what would be for equal rows, and tiles beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from ...artifact.store import ArtifactStore
from ...config_error import ConfigError
from ...kernels.gemm.config import GemmConfig
from ...runtime.device_gemm import LoadedGemm
from ...runtime.expert_call import ExpertWeightsFp8
from ...runtime.expert_plan import DeviceExperts
from ...target import Target
from ..timing import time_graphs
from .compile import compile_missing
from .inputs import DrawnCall, draw_weights
from .point import ExpertPoint

FIELDS = ("block_m", "block_n", "swap_ab", "halves", "in_turn")
OTHERS: dict[str, dict[str, Any]] = {
    "half tiles": {"block_m": 128, "block_n": 256, "halves": True, "boxes": 1},
    "192 x 128": {"block_m": 192, "block_n": 128},
}
"""Of many rows; with few, rows of A are the wgmma's columns, and the tile has twice as many columns of D."""


def tile_configs(point: ExpertPoint, target: Target) -> dict[str, GemmConfig]:
    """Of Linear2 by name, the chosen first, no two alike."""
    problem, rows = point.layer.fc2, point.tokens * point.layer.topk
    chosen = point.layer.configs(target, point.tokens).fc2
    assert isinstance(chosen, GemmConfig)
    found = {"chosen": chosen, "equal rows": GemmConfig.choose(problem, target, rows, weights_first=chosen.weights_first)}
    wide = {"twice the columns": {"block_m": chosen.block_m, "block_n": 2 * chosen.block_n, "swap_ab": True}} if chosen.swap_ab else OTHERS
    for name, fields in wide.items():
        try:
            found[name] = GemmConfig(problem, num_sms=target.num_sms, dealt=True, weights_first=chosen.weights_first, **fields)
        except ConfigError:  # what does not fit a CTA
            continue
    return {name: one for index, (name, one) in enumerate(found.items()) if one not in list(found.values())[:index]}


def compile_tiles(points: Sequence[ExpertPoint], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks of them and of the layers around; how many kernels."""
    wanted: set[Any] = {
        config for one in points for config in (*tile_configs(one, target).values(), *one.layer.configs(target, one.tokens))
    }
    return compile_missing(wanted, folder)


def run_tiles(points: Sequence[ExpertPoint], target: Target, folder: Path) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    for layer, own in groupby(points, key=lambda point: point.layer):
        weights = draw_weights(layer)
        for point in own:
            yield run_point(point, target, ArtifactStore(folder), weights)
        del weights
        torch.cuda.empty_cache()


def run_point(point: ExpertPoint, target: Target, store: ArtifactStore, weights: ExpertWeightsFp8) -> dict[str, Any]:
    """Times, tiles, and whether each gives the bits of the layer's Linear2."""
    call = DrawnCall.draw(point.layer, point.tokens, weights).call
    DeviceExperts(point.layer.configs(target, point.tokens), store, call.x.device)(call)
    configs = tile_configs(point, target)
    ways = {name: partial(LoadedGemm(config, store, call.x.device), call.fc2) for name, config in configs.items()}
    d = call.fc2.d[: int(call.ends[-1])]
    expected, same = d.clone(), {}
    for name, way in ways.items():
        d.zero_()
        way()
        same[name] = torch.equal(d, expected)
    return {
        "point": str(point),
        "us": {name: asdict(times) for name, times in time_graphs(ways).items()},
        "tiles": {name: {field: getattr(config, field) for field in FIELDS} for name, config in configs.items()},
        "same_bits": same,
        "passed": all(same.values()),
    }
