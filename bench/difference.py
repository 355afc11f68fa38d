"""How far results of two kernels are apart."""

from __future__ import annotations

import torch
import torch.distributed as dist


def relative_difference(y: torch.Tensor, other: torch.Tensor) -> float:
    """|y - other| / |other| in the 2-norm over all tokens of all ranks; all ranks together."""
    sums = torch.stack([(y.double() - other.double()).square().sum(), other.double().square().sum()])
    dist.all_reduce(sums)
    return float((sums[0] / sums[1].clamp(min=1e-30)).sqrt())
