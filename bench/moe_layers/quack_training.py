"""The training step of sonic-moe 0.1.2 in BF16 by the GEMMs of quack that it calls, from a folder as `quack_gemms` has it.

Both gated GEMMs and all gathers are quack's, as `functional/__init__.py` of sonic-moe calls them; rows are sorted and summed by this
library's kernels.  Every GEMM takes the fastest of `TILES` for a point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines.site import import_from
from megamoe_dsl.bench.timing import time_back_to_back
from megamoe_dsl.runtime import expert_gradients as stages
from megamoe_dsl.runtime.device_gradients import sum_rows
from moe_layers.quack_gemms import TILES

PLAIN, GATED, DGATED = "gemm", "gemm_gated", "gemm_dgated"


@dataclass
class QuackGemms:
    """quack's GEMMs; `chosen` is the fastest tile of each, by the name of its product."""

    library: Any
    chosen: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, site: Path) -> QuackGemms:
        """Raises `ImportError` where the folder lacks something."""
        return cls(import_from("quack.gemm_interface", site))

    def configs(self) -> dict[str, Any]:
        fixed = {"cluster_m": 2, "cluster_n": 1, "is_dynamic_persistent": False}
        return {str(one): self.library.GemmConfig(tile_m=one.rows, tile_n=one.columns, pingpong=one.turns, **fixed) for one in TILES}

    def __call__(self, name: str, kind: str, *operands: torch.Tensor, **more: Any) -> Any:
        function = self.library.gemm_tuned.fn if kind == PLAIN else partial(getattr(self.library, kind), activation="swiglu")
        run = partial(function, *operands, **more, dynamic_scheduler=False)
        configs = self.configs()
        if name not in self.chosen:
            self.chosen[name] = fastest({tile: partial(run, config=one) for tile, one in configs.items()})
        return run(config=configs[self.chosen[name]])


def fastest(runs: dict[str, Callable[[], Any]]) -> str:
    """Of those that run: a tile may not fit an epilogue."""
    fitting = {}
    for name, one in runs.items():
        try:
            one()
        except Exception as error:  # whatever their compiler raises
            print(f"quack, {name}: {type(error).__name__}: {str(error)[:120]}", flush=True)
        else:
            fitting[name] = one
    times = time_back_to_back(fitting, 2, 2)
    return min(times, key=lambda name: times[name].low)


class QuackStep(torch.autograd.Function):
    """y of tokens; rows of w1 are gate and up in turn."""

    @staticmethod
    def forward(
        ctx: Any, gemms: QuackGemms, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        ends, sources, positions, *_ = stages.route(x, idx, len(w1), stages.BF16)
        starts = torch.cat([ends.new_zeros(1), ends])
        z, h = gemms("up", GATED, x, w1.mT, cu_seqlens_m=starts, A_idx=sources)
        rows = x.new_empty(len(sources), x.shape[1])
        gemms("down", PLAIN, h, w2.mT, rows, cu_seqlens_m=starts)
        ctx.gemms = gemms
        ctx.save_for_backward(x, w1, w2, weights, z, starts, sources, positions)
        return sum_rows(rows, positions, weights)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gemms: QuackGemms = ctx.gemms
        x, w1, w2, weights, z, starts, sources, positions = ctx.saved_tensors
        places = positions.flatten().long()
        scale = weights.new_empty(len(sources)).scatter_(0, places, weights.flatten())
        reduces = {"colvec_scale": scale, "colvec_reduce": True}
        dz, h, dots = gemms("dgated", DGATED, dy, w2, z, cu_seqlens_m=starts, A_idx=sources, **reduces)
        dw1, dw2 = torch.empty_like(w1), torch.empty_like(w2)
        gemms("dw2", PLAIN, dy.T, h, dw2, cu_seqlens_k=starts, A_idx=sources)
        gemms("dw1", PLAIN, x.T, dz, dw1.mT, cu_seqlens_k=starts, A_idx=sources)
        rows = torch.empty(len(sources), x.shape[1], dtype=x.dtype, device=x.device)
        gemms("dx", PLAIN, dz, w1, rows, cu_seqlens_m=starts)
        dx = sum_rows(rows, positions, torch.ones_like(weights))
        return None, dx, dw1, dw2, None, dots[places].view(weights.shape)
