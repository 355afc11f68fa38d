"""The layer as torch operators, so that torch.compile and torch.export treat a call as one node.

An operator's arguments are tensors and numbers; the layer behind them is named by a number.  The symmetric buffer is scratch memory that no
caller sees, so it is no argument: y is a function of the others.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from .layer import MegaMoE

_LAYERS: WeakValueDictionary[int, MegaMoE] = WeakValueDictionary()
_NUMBERS = count()


def register(layer: MegaMoE) -> int:
    """A number that names the layer in operator calls as long as it lives."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


@torch.library.custom_op("megamoe_dsl::mega_moe", mutates_args=())
def mega_moe(
    x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor, layer: int, num_tokens_bound: int
) -> torch.Tensor:
    """y, bf16 [T, hidden].  x_sf None: x is bf16 and quantised on the way; num_tokens_bound negative: no hint."""
    y = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    _LAYERS[layer].launch(y, x, x_sf, topk_idx, topk_weights, num_tokens_bound)
    return y


@mega_moe.register_fake
def _(
    x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor, layer: int, num_tokens_bound: int
) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)


@torch.library.custom_op("megamoe_dsl::mega_moe_out", mutates_args=("y",))
def mega_moe_out(
    y: torch.Tensor,
    x: torch.Tensor,
    x_sf: torch.Tensor | None,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    layer: int,
    num_tokens_bound: int,
) -> None:
    """As `mega_moe`, into y."""
    _LAYERS[layer].launch(y, x, x_sf, topk_idx, topk_weights, num_tokens_bound)


@mega_moe_out.register_fake
def _(
    y: torch.Tensor,
    x: torch.Tensor,
    x_sf: torch.Tensor | None,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    layer: int,
    num_tokens_bound: int,
) -> None:
    return None
