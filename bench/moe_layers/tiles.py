"""Linear2 alone by tiles, of as many columns as are summed together, with rows as a router deals them: what is chosen, what would be for
equal rows, and tiles beside them.

Where K blocks are asked for in bursts, both linears with one at a time, too, and where CTAs work in pairs, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl import choose
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import time_graphs
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.runtime.device_gemm import LoadedGemm
from megamoe_dsl.runtime.expert_call import LayerOperands
from megamoe_dsl.runtime.preparation import compile_ahead
from megamoe_dsl.target import Target
from moe_layers.inputs import DrawnCall, run_each
from moe_layers.point import ExpertPoint
from moe_layers.steps import SteppedExperts

FIELDS = ("block_m", "block_n", "swap_ab", "half_tiles", "burst", "cluster")
OTHERS: dict[str, dict[str, Any]] = {
    "192 x 128": {"block_m": 192, "block_n": 128},
    "192 x 128 in pairs": {"block_m": 192, "block_n": 128, "cluster": 2},
}
"""Of many rows; with few, rows of A are the wgmma's columns, and the tile has twice as many columns of D."""


ONE_BY_ONE = "one K block at a time"
ALONE = "CTAs alone"


def tile_configs(point: ExpertPoint, target: Target) -> dict[str, GemmConfig]:
    """Of Linear2 by name, the chosen first, no two alike."""
    chosen, rows = point.layer.configs(target, point.tokens).fc2, point.tokens * point.layer.topk
    assert isinstance(chosen, GemmConfig)
    problem = chosen.problem
    found = {"chosen": chosen, "equal rows": choose(problem, target, rows, prefetch_weights=chosen.prefetch_weights)}
    wide = {"twice the columns": {"block_m": chosen.block_m, "block_n": 2 * chosen.block_n, "swap_ab": True}} if chosen.swap_ab else OTHERS
    for name, fields in wide.items():
        try:
            found[name] = GemmConfig(
                problem, num_sms=target.num_sms, dynamic_schedule=True, prefetch_weights=chosen.prefetch_weights, **fields
            )
        except ConfigError:  # what does not fit a CTA
            continue
    found |= beside(chosen)
    return {name: one for index, (name, one) in enumerate(found.items()) if one not in list(found.values())[:index]}


def beside(chosen: GemmConfig) -> dict[str, GemmConfig]:
    """The same without bursts, where there are any, or without pairs."""
    bursts = {ONE_BY_ONE: chosen.replace(burst=1)} if chosen.burst > 1 else {}
    return bursts | ({ALONE: chosen.replace(cluster=1)} if chosen.cluster > 1 else {})


def fc1_configs(point: ExpertPoint, target: Target) -> dict[str, GemmConfig]:
    """Of Linear1 by name; none where nothing is beside the chosen one."""
    chosen = point.layer.configs(target, point.tokens).fc1
    assert isinstance(chosen, GemmConfig)
    others = beside(chosen)
    return {"chosen": chosen, **others} if others else {}


def compile_tiles(points: Sequence[ExpertPoint], target: Target, folder: Path) -> int:
    """Compiles what the folder lacks of them and of the layers around; how many kernels."""
    wanted: set[Any] = {
        config
        for one in points
        for configs in (tile_configs(one, target), fc1_configs(one, target))
        for config in (*configs.values(), *one.layer.configs(target, one.tokens))
    }
    return compile_ahead(wanted, ArtifactStore(folder))


def run_tiles(points: Sequence[ExpertPoint], target: Target, folder: Path) -> Iterator[dict[str, Any]]:
    """A record of each point; models one after another."""
    return run_each(points, lambda point, weights: run_point(point, target, ArtifactStore(folder), weights))


def run_point(point: ExpertPoint, target: Target, store: ArtifactStore, weights: LayerOperands) -> dict[str, Any]:
    """Times, tiles, and whether each gives the bits of the layer's linear."""
    call = DrawnCall.draw(point.layer, point.tokens, weights).call
    SteppedExperts(point.layer.configs(target, point.tokens), store, call.x.device)(call)
    configs, ways, same = dict[str, GemmConfig](), dict[str, Callable[[], None]](), dict[str, bool]()
    for prefix, of_linear, tensors in (("fc1, ", fc1_configs(point, target), call.fc1), ("", tile_configs(point, target), call.fc2[0])):
        d = tensors.d[: int(call.ends[-1])].view(torch.uint8)
        expected = d.clone()
        for name, config in of_linear.items():
            way = partial(LoadedGemm(config, store, call.x.device), tensors)
            d.zero_()
            way()
            configs[prefix + name], ways[prefix + name], same[prefix + name] = config, way, torch.equal(d, expected)
    return {
        "point": str(point),
        "us": {name: asdict(times) for name, times in time_graphs(ways).items()},
        "tiles": {name: {field: getattr(config, field) for field in FIELDS} for name, config in configs.items()},
        "same_bits": same,
        "passed": all(same.values()),
    }
