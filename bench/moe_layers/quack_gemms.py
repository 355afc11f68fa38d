"""quack's GEMMs as the two linears of a layer in BF16, from a folder with its sources, CuTe DSL and einops: nothing of theirs is installed.

Linear1 gathers its rows and activates gate and up, Linear2 takes them packed; sorting before and the sum after are this library's.  The
DSL has to lie under a `site-packages`: quack hashes what its epilogues call, and fails at the DSL's own functions anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from baselines.site import import_from
from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers.other_way import OtherWay
from moe_layers.steps import SteppedExperts


class QuackTile(NamedTuple):
    """Of a CTA's result: rows, columns of gate and up together, and whether warpgroups take turns at whole tiles or share one."""

    rows: int
    columns: int
    turns: bool

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}"


TILES = (QuackTile(128, 192, True), QuackTile(128, 256, False), QuackTile(256, 128, False), QuackTile(256, 192, False))
"""The default of quack 0.6.4 on Hopper, and three that its tuner tries there; clusters are two tiles along the rows, as in all with
which its tuner gathers."""


@dataclass(frozen=True)
class QuackLayer:
    """A call by quack with one tile, into the call's own tensors.

    w1        bfloat16 [num_experts, 2 intermediate, hidden], rows of gate and up in turn
    starts    int32 [num_experts + 1]
    """

    call: ExpertCall
    ours: SteppedExperts
    quack: Any
    config: Any
    w1: torch.Tensor
    starts: torch.Tensor

    def fc1(self) -> None:
        """Linear1, whose gate and up are not stored."""
        call = self.call
        rows = {"cu_seqlens_m": self.starts, "A_idx": call.sources[: call.rows]}
        written = {"store_preact": False, "postact_out": call.fc1.d}
        self.quack.gemm_gated(call.x, self.w1.mT, activation="swiglu", **rows, **written, config=self.config)

    def fc2(self) -> None:
        """Linear2; the function under quack's tuner, which alone takes a configuration."""
        call, (whole,) = self.call, self.call.fc2.values()
        self.quack.gemm_tuned.fn(call.fc1.d, call.operands.w2.mT, whole.d, cu_seqlens_m=self.starts, config=self.config)

    def __call__(self) -> torch.Tensor:
        """y."""
        self.ours.route(self.call)
        self.starts[1:].copy_(self.call.ends)
        self.fc1()
        self.fc2()
        self.ours.sum(self.call)
        return self.call.y


def interleaved(w1: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in turn, of [num_experts, 2 intermediate, hidden] with gate first."""
    experts, rows, hidden = w1.shape
    return w1.view(experts, 2, rows // 2, hidden).transpose(1, 2).reshape(experts, rows, hidden)


def quack_layers(call: ExpertCall, ours: SteppedExperts, site: Path) -> dict[str, QuackLayer]:
    """By tile.  Raises `ImportError` where the folder lacks something."""
    library = import_from("quack.gemm_interface", site)
    w1, starts = interleaved(call.operands.w1), torch.zeros(call.layer.num_experts + 1, dtype=torch.int32, device=call.x.device)
    fixed = {"cluster_m": 2, "cluster_n": 1, "is_dynamic_persistent": False}
    return {
        str(tile): QuackLayer(
            call, ours, library, library.GemmConfig(tile_m=tile.rows, tile_n=tile.columns, pingpong=tile.turns, **fixed), w1, starts
        )
        for tile in TILES
    }


def quack_ways(call: ExpertCall, ours: SteppedExperts, site: Path) -> dict[str, OtherWay]:
    """By tile the layer and each linear.  Raises `ImportError`."""
    ways: dict[str, OtherWay] = {}
    for tile, layer in quack_layers(call, ours, site).items():
        ways[f"quack layer {tile}"] = OtherWay.of(layer, whole=True)
        ways |= {f"quack {name} {tile}": OtherWay.of(part) for name, part in (("fc1", layer.fc1), ("fc2", layer.fc2))}
    return ways
