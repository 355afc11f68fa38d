"""Special registers (PTX ISA, "Special Registers")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SimError
from .interfaces import CtaLike, WarpLike
from .lanes import LANE

_MASKS = {
    "%lanemask_eq": np.uint32(1) << LANE,
    "%lanemask_lt": (np.uint32(1) << LANE) - np.uint32(1),
    "%lanemask_le": (np.uint64(2) << LANE.astype(np.uint64)).astype(np.uint32) - np.uint32(1),
    "%lanemask_gt": ~((np.uint64(2) << LANE.astype(np.uint64)).astype(np.uint32) - np.uint32(1)),
    "%lanemask_ge": ~((np.uint32(1) << LANE) - np.uint32(1)),
}


def _unlinear(rank: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return rank % shape[0], rank // shape[0] % shape[1], rank // (shape[0] * shape[1])


def _cta_value(name: str, axis: int) -> Callable[[CtaLike], int]:
    """Registers that are the same for every thread of a CTA."""
    table: dict[str, Callable[[CtaLike], int]] = {
        "%ntid": lambda c: c.launch.block[axis],
        "%ctaid": lambda c: c.ctaid[axis],
        "%nctaid": lambda c: c.launch.grid[axis],
        "%clusterid": lambda c: c.ctaid[axis] // c.launch.cluster[axis],
        "%nclusterid": lambda c: c.launch.grid[axis] // c.launch.cluster[axis],
        "%cluster_ctaid": lambda c: _unlinear(c.cluster_rank, c.launch.cluster)[axis],
        "%cluster_nctaid": lambda c: c.launch.cluster[axis],
        "%cluster_ctarank": lambda c: c.cluster_rank,
        "%cluster_nctarank": lambda c: len(c.cluster.ctas),
        "%is_explicit_cluster": lambda c: 1,
        "%smid": lambda c: c.sm,
        "%nsmid": lambda c: c.launch.grid[0] * c.launch.grid[1] * c.launch.grid[2],
        "%nwarpid": lambda c: len(c.warps),
        "%gridid": lambda c: 0,
        "%dynamic_smem_size": lambda c: c.launch.dynamic_smem,
        "%total_smem_size": lambda c: c.shared.limit,
    }
    if name not in table:
        raise SimError(f"unknown special register {name}")
    return table[name]


def special_register(text: str, dtype: type) -> NDArray[Any] | Callable[[WarpLike], NDArray[Any]]:
    """A constant array, or a function of the warp, for a special register such as `%tid.x`."""
    name, _, suffix = text.partition(".")
    axis = "xyz".index(suffix) if suffix else 0
    if name == "%laneid":
        return LANE.astype(dtype)
    if name in _MASKS:
        return _MASKS[name].astype(dtype)
    if name in ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo", "%clock_hi", "%globaltimer_hi"):
        shift = 32 if name.endswith("_hi") else 0
        return lambda w: np.full(32, w.world.clock() >> shift & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(dtype)
    if name == "%tid":
        return lambda w: w.thread_index[axis].astype(dtype)
    if name == "%warpid":
        return lambda w: np.full(32, w.index, dtype)
    value = _cta_value(name, axis)
    return lambda w: np.full(32, value(w.cta), dtype)
