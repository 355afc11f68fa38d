"""FlashInfer's layer in BF16 on Hopper, from a folder with its Python files (bench/sites.py), compiled by the CuTe DSL that is installed.

One GEMM gathers rows and activates, the other adds weighted rows to y by atomics, so that bits differ from run to run, or keeps a row of
every slot. This library's kernel sums those, in the place of a CUDA module, and torch sorts slots into tiles beforehand, in the place of
another: times hold no sorting, but setting y to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from megamoe_dsl.runtime.device_gradients import sum_rows
from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers.other_way import OtherWay

RUN = 32
"""Rows of up, then of gate, in W1."""


class FlashInferTile(NamedTuple):
    """Rows of a tile of both GEMMs, columns of each, and CTAs of a cluster of the second."""

    rows: int
    fc1: int
    fc2: int
    cluster: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.fc1}, {self.fc2}" + (" in pairs" if self.cluster > 1 else "")


TILES = (
    *(FlashInferTile(64, *one) for one in ((64, 64, 1), (128, 128, 2), (256, 128, 2))),
    *(FlashInferTile(128, *one) for one in ((128, 256, 1), (192, 256, 1), (256, 256, 1), (256, 256, 2))),
)
"""Of those that its tuner tries, the ones that were fastest at some number of tokens; the first three with few rows."""


def tiles_for(call: ExpertCall) -> tuple[FlashInferTile, ...]:
    """Those worth timing for a call's rows."""
    rows = 64 if call.rows < 64 * call.layer.num_experts else 128
    return tuple(one for one in TILES if one.rows == rows)


@dataclass(frozen=True)
class SortedSlots:
    """Slots by expert, in whole tiles, as its kernels read them: all int32.

    experts  of each tile
    ends     row behind the last one that an expert has, of each tile
    slots    of each row; of rows beyond an expert's 0
    count    [1], tiles
    """

    experts: torch.Tensor
    ends: torch.Tensor
    slots: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, topk_idx: torch.Tensor, num_experts: int, rows: int) -> SortedSlots:
        """Tiles of so many rows."""
        chosen = topk_idx.flatten().long()
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=num_experts)
        tiles = -(-counts // rows)
        starts = (tiles.cumsum(0) - tiles) * rows
        experts = torch.repeat_interleave(torch.arange(num_experts, device=chosen.device), tiles)
        within = torch.arange(len(chosen), device=chosen.device) - (counts.cumsum(0) - counts)[chosen[order]]
        slots = torch.zeros(len(experts) * rows, dtype=torch.int32, device=chosen.device)
        slots[starts[chosen[order]] + within] = order.int()
        count = torch.tensor([len(experts)], dtype=torch.int32, device=chosen.device)
        return cls(experts.int(), (starts + counts)[experts].int(), slots, count)

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(one.data_ptr() for one in (self.experts, self.ends, self.slots, self.count))


@dataclass(frozen=True)
class FlashInferLayer:
    """A call; `w1` as `up_and_gate` makes it, `hidden` [rows of all tiles, intermediate], `y` as the call's."""

    call: ExpertCall
    sorted: SortedSlots
    kernels: tuple[Callable[..., None], Callable[..., None]]
    w1: torch.Tensor
    weights: torch.Tensor
    hidden: torch.Tensor
    y: torch.Tensor

    def fc1(self) -> None:
        experts, rows, hidden = self.w1.shape
        tensors = (one.data_ptr() for one in (self.call.x, self.w1, self.hidden))
        sizes = self.call.tokens, len(self.hidden), rows, hidden, experts
        self.kernels[0](*tensors, *self.sorted.addresses, *sizes, torch.cuda.current_stream().cuda_stream)

    def fc2(self) -> None:
        experts, rows, channels = self.call.operands.w2.shape
        tensors = (one.data_ptr() for one in (self.hidden, self.call.operands.w2, self.y))
        sizes = len(self.hidden), rows, channels, experts, self.call.tokens
        scales = self.weights.data_ptr()
        self.kernels[1](*tensors, *self.sorted.addresses, scales, *sizes, torch.cuda.current_stream().cuda_stream)

    def __call__(self) -> torch.Tensor:
        """y."""
        self.y.zero_()
        self.fc1()
        self.fc2()
        return self.y


@dataclass(frozen=True)
class KeptRows(FlashInferLayer):
    """The same with a row of every slot as its `y`; `places` are numbers of slots, as of a call's positions."""

    places: torch.Tensor

    def __call__(self) -> torch.Tensor:
        self.fc1()
        self.fc2()
        return sum_rows(self.y, self.places, self.weights)


def up_and_gate(w1: torch.Tensor) -> torch.Tensor:
    """32 rows of up, then 32 of gate, of [num_experts, 2 intermediate, hidden] with gate first; an expert at a time, for lack of memory."""
    made, half = torch.empty_like(w1), w1.shape[1] // 2
    for expert, rows in enumerate(w1):
        gate, up = rows[:half].unflatten(0, (-1, RUN)), rows[half:].unflatten(0, (-1, RUN))
        made[expert] = torch.stack((up, gate), dim=1).flatten(0, 2)
    return made


def flashinfer_layers(calls: Sequence[ExpertCall], site: Path) -> dict[str, list[FlashInferLayer]]:
    """Calls of the same weights, by tile.  Raises `ImportError` where there is no DSL, or the folder lacks something."""
    from moe_layers.flashinfer_kernels import compiled_finalize, compiled_gather

    tiles, w1 = tiles_for(calls[0]), up_and_gate(calls[0].weights.w1)
    found: dict[str, list[FlashInferLayer]] = {f"flashinfer {tile}": [] for tile in tiles}
    for call in calls:
        layer, weights, y = call.layer, call.topk_weights.float().contiguous(), torch.empty_like(call.x)
        slots = SortedSlots.of(call.topk_idx, layer.num_experts, tiles[0].rows)
        hidden = torch.empty(len(slots.slots), layer.intermediate, dtype=call.x.dtype, device=call.x.device)
        for tile, layers in zip(tiles, found.values(), strict=True):
            fc1 = compiled_gather(site, tile.rows, tile.fc1, layer.topk)
            fc2 = compiled_finalize(site, tile.rows, tile.fc2, tile.cluster, layer.topk, True)
            layers.append(FlashInferLayer(call, slots, (fc1, fc2), w1, weights, hidden, y))
    return found


def flashinfer_ways(call: ExpertCall, site: Path) -> dict[str, OtherWay]:
    """The layer by tile, also with rows kept.  Raises `ImportError` where there is no DSL, or the folder lacks something."""
    from moe_layers.flashinfer_kernels import compiled_finalize

    layers = {name: layer for name, (layer,) in flashinfer_layers([call], site).items()}
    rows = torch.empty(call.rows, call.layer.hidden, dtype=call.x.dtype, device=call.x.device)
    places = torch.arange(call.rows, dtype=torch.int32, device=call.x.device).view(call.tokens, -1)
    for tile, (name, layer) in zip(tiles_for(call), tuple(layers.items()), strict=True):
        fc2 = compiled_finalize(site, tile.rows, tile.fc2, tile.cluster, call.layer.topk, False)
        kept = {**vars(layer), "kernels": (layer.kernels[0], fc2), "y": rows}
        layers[f"rows kept, {name}"] = KeptRows(**kept, places=places)
    return {name: OtherWay.of(layer, whole=True) for name, layer in layers.items()}
