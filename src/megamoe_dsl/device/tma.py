"""Bulk copies (PTX ISA, cp.async.bulk and cp.async.bulk.tensor).  Tensor maps are addresses of 128-byte descriptors in global memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .ptx import emit

acquire_tensor_map = partial(emit, "fence.proxy.tensormap::generic.acquire.sys [{}], 128;")
"""Makes TMA see the tensor map that the host has written; for this thread, and for all that a barrier of the CTA orders after it."""
prefetch_tensor_map = partial(emit, "prefetch.tensormap [{}];")
"""Into the descriptor cache, before a tensor map's first use."""


def _load(group: str, destination: Any, tensor_map: Any, barrier: Any, *places: Any, ctas: Any = None, mode: str = "tile") -> None:
    """A box from coordinates `places` on into this CTA's SMEM, or into the same place in each CTA whose bit is set in `ctas`."""
    dims, names = 2 if mode == GATHER else len(places), ", ".join("{}" for _ in places)
    copy = f"cp.async.bulk.tensor.{dims}d{group}.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
    operands = f" [{{}}], [{{}}, {{{{{names}}}}}], [{{}}]"
    if ctas is None:
        emit(f"{copy}{operands};", destination, tensor_map, *places, barrier)
    else:
        mask = "{{\n\t.reg .b16 m;\n\tcvt.u16.u32 m, {};\n\t"
        emit(f"{mask}{copy}.multicast::cluster{operands}, m;\n\t}}}}", ctas, destination, tensor_map, *places, barrier)


GATHER = "tile::gather4"
load_tile_cta = partial(_load, "")
"""(destination, map, barrier, *places, ctas): counted on this CTA's barrier, or on the same one of each of `ctas`; without CTA pairs."""
load_tile = partial(_load, ".cta_group::2")
"""The same; `barrier` may be the pair's even CTA's.  With `ctas`, counted on the barrier of the even CTA of each one's pair."""


def gather_rows(destination: Any, tensor_map: Any, barrier: Any, x: Any, rows: Sequence[Any], ctas: Any = None) -> None:
    """Four rows of a 2-D tensor, from column `x` on, one after another into this CTA's SMEM, through a map with a box of one row; rows that
    are not there are zeros.  `barrier` and `ctas` as of `load_tile`."""
    load_tile(destination, tensor_map, barrier, x, *rows, ctas=ctas, mode=GATHER)


def _store(operation: str, mode: str, tensor_map: Any, source: Any, *places: Any) -> None:
    """From SMEM to a 2-D tensor, in the issuing thread's bulk group."""
    names = ", ".join("{}" for _ in places)
    copy = f"cp.{operation}.bulk.tensor.2d.global.shared::cta.{mode}.bulk_group"
    emit(f"{copy} [{{}}, {{{{{names}}}}}], [{{}}];", tensor_map, *places, source)


store_tile = partial(_store, "async", "tile")  # (map, source, x, y): a box
add_tile = partial(_store, "reduce.async", "add.tile")  # (map, source, x, y): a box is added to memory
scatter_rows = partial(_store, "async", "tile::scatter4")
"""(map, source, x, *rows): four rows that follow one another in SMEM, from column `x` on, through a map with a box of one row; those to
rows that are not there go nowhere."""
load_bytes = partial(emit, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];")
"""(destination, source, num_bytes, barrier): 1-D copy, 16-byte aligned, from any mapped global address."""
store_bytes = partial(emit, "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};")
"""(destination, source, num_bytes): 1-D copy from SMEM, 16-byte aligned, in the issuing thread's bulk group."""
copy_to_cta = partial(emit, "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];")
"""(destination, source, num_bytes, barrier): 1-D copy, 16-byte aligned, from this CTA's SMEM into that of a CTA of the cluster; the bytes
count on `barrier`, of the same CTA."""
commit_group = partial(emit, "cp.async.bulk.commit_group;")
"""This thread's stores so far are one group, for `wait_group`."""
wait_group = partial(emit, "cp.async.bulk.wait_group {};")
"""Until at most so many groups of this thread are incomplete: the others' writes are visible to it."""
wait_group_read = partial(emit, "cp.async.bulk.wait_group.read {};")
"""Until at most so many groups of this thread still read their SMEM."""
