"""Where a result leaves its error bound."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def violations(y: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], bound: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Elements of y that leave the bound; NaN always does.

    Args:
        y, reference: per rank [T_r, H], any floating dtype.
        bound: per rank float64 [T_r, H] from `error_bound`.

    Returns:
        Per rank int64 [n, 2], (token, channel) of each violation.

    Raises:
        ValueError: when a shape differs from the reference's, naming the rank.
    """
    for rank, (got, want) in enumerate(zip(y, reference, strict=True)):
        if got.shape != want.shape:
            raise ValueError(f"y[{rank}]: shape {tuple(got.shape)}, allowed: {tuple(want.shape)}")
    return [(~((got.double() - want.double()).abs() <= limit)).nonzero() for got, want, limit in zip(y, reference, bound, strict=True)]
