"""Other libraries' ways of doing a layer, from folders with their wheels or sources."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers.baselines import torch_ways
from moe_layers.deep_gemm import deep_gemm_ways
from moe_layers.flashinfer_moe import flashinfer_ways
from moe_layers.other_way import OtherWay
from moe_layers.quack_gemms import quack_ways
from moe_layers.sglang_triton import sglang_ways
from moe_layers.sonic_moe import sonic_ways
from moe_layers.steps import SteppedExperts

Bf16Weights = tuple[torch.Tensor, torch.Tensor]
"""W1 and W2."""


class Sites(NamedTuple):
    """Folders, or None."""

    deep_gemm: Path | None = None
    sglang: Path | None = None
    quack: Path | None = None
    sonic: Path | None = None
    flashinfer: Path | None = None


def others(
    model: str, call: ExpertCall, ours: SteppedExperts, as_bf16: Bf16Weights, sites: Sites
) -> dict[str, Callable[[], dict[str, OtherWay]]]:
    """By library, of those that have a folder and take the layer's number formats; torch is always there.  What is called may raise
    `ImportError`."""
    scaled = call.layer.formats.scaled
    found: dict[str, Callable[[], dict[str, OtherWay]]] = {"torch": partial(torch_ways, call, *as_bf16)}
    if sites.sglang is not None and scaled:
        found["sglang"] = partial(sglang_ways, model, call, sites.sglang)
    if sites.quack is not None and not scaled:
        found["quack"] = partial(quack_ways, call, ours, sites.quack)
    if sites.sonic is not None and not scaled:
        found["sonic-moe"] = partial(sonic_ways, call, sites.sonic)
    if sites.flashinfer is not None and not scaled:
        found["flashinfer"] = partial(flashinfer_ways, call, sites.flashinfer)
    if sites.deep_gemm is not None and scaled:
        found["deep_gemm"] = partial(deep_gemm_ways, call, sites.deep_gemm, sites.sglang)
    return found
