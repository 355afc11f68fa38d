"""Some tokens of a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from megamoe_dsl.reference import LayerInputs

Given = TypeVar("Given", bound=LayerInputs)


def sampled(case: Given, tokens: Sequence[torch.Tensor]) -> Given:
    """The inputs of the rows `tokens` of every rank, int64 [n_r]: all that the results of these tokens depend on."""
    chosen = {
        name: [one.view(torch.uint8)[rows].view(one.dtype) if name == "x" else one[rows] for one, rows in zip(given, tokens, strict=True)]
        for name, given in (("x", case.x), ("x_sf", case.x_sf), ("topk_idx", case.topk_idx), ("topk_weights", case.topk_weights))
    }
    return replace(case, **chosen)
