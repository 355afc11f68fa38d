"""The layer as torch operators, so that torch.compile and torch.export treat a call as one node.

An operator's arguments are tensors and numbers, so a number names the layer.  The symmetric buffer is no argument: it is scratch memory
that no caller sees, and y is a function of the arguments.

All ranks must make the same calls in the same order, whether y is used or not.  So the operators declare that they change `order`, a tensor
that all layers on a symmetric buffer share: then a compiler neither drops nor merges calls, nor changes their order.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from .launchable import Launchable

_LAYERS: WeakValueDictionary[int, Launchable] = WeakValueDictionary()
_NUMBERS = count()


def register(layer: Launchable) -> int:
    """A number that names the layer in operator calls as long as it lives."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


def layer_of(number: int) -> Launchable:
    """Raises LookupError when the layer is gone."""
    if number not in _LAYERS:
        raise LookupError(f"layer {number} of a mega_moe operator no longer exists")
    return _LAYERS[number]


def new_output(x: torch.Tensor, padded_tokens: int) -> torch.Tensor:
    """y for x, bf16 [T or padded_tokens, hidden], not yet written."""
    tokens, *rest = x.shape
    return torch.empty(tokens if padded_tokens < 0 else padded_tokens, *rest, dtype=torch.bfloat16, device=x.device)


@torch.library.custom_op("megamoe_dsl::mega_moe", mutates_args=("order",))
def mega_moe(
    x: torch.Tensor,
    x_sf: torch.Tensor | None,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    order: torch.Tensor,
    layer: int,
    num_tokens_bound: int,
    padded_tokens: int,
) -> torch.Tensor:
    """y, bf16 [T or padded_tokens, hidden].  Without x_sf, x is bf16 and quantised first.  A negative number stands for None."""
    y = new_output(x, padded_tokens)
    layer_of(layer).launch(y, x, x_sf, topk_idx, topk_weights, num_tokens_bound, padded_tokens)
    return y


@mega_moe.register_fake
def _(x: torch.Tensor, *others: Any) -> torch.Tensor:
    *_, padded_tokens = others
    return new_output(x, padded_tokens)


@torch.library.custom_op("megamoe_dsl::mega_moe_out", mutates_args=("y", "order"))
def mega_moe_out(
    y: torch.Tensor,
    x: torch.Tensor,
    x_sf: torch.Tensor | None,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    order: torch.Tensor,
    layer: int,
    num_tokens_bound: int,
    padded_tokens: int,
) -> None:
    """As `mega_moe`, into y."""
    layer_of(layer).launch(y, x, x_sf, topk_idx, topk_weights, num_tokens_bound, padded_tokens)


@mega_moe_out.register_fake
def _(*arguments: Any) -> None:
    return None
