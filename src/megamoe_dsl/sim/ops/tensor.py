"""TMA tensor copies: cp.async.bulk.tensor, its reduction and its prefetch, tiled mode and rows in any order (gather4, scatter4).

Source: PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "Tensors". A load of a CTA pair (`cta_group::2`) may signal
the barrier of either CTA of the pair. Out-of-bounds elements are filled with zeros and count as transaction bytes; in a store
they are clipped.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...hardware.tensor_map import FIELD_BYTES, TensorMap, TensorMapDtype
from .. import tma_engine as tma
from ..chunks import GATHERED_ROWS, Chunks, boxes_at, shared_chunks, to_shared_format
from ..clock import Actor
from ..memory import SMEM_RESERVED, Bytes
from ..operands import COMBINED, combination
from . import ADDRESS, Cta, PtxInstruction, SimError, Warp, all_lanes
from .access import find, line_of, shared_target
from .bulk import post_load, post_store
from .tensormap import check_acquired

_SMEM_ALIGNMENT = 128
_MAP_ALIGNMENT = 64
_ELEMENT = {
    TensorMapDtype.U32: "u32", TensorMapDtype.U64: "u64", TensorMapDtype.F16: "f16", TensorMapDtype.BF16: "bf16",
    TensorMapDtype.F32: "f32", TensorMapDtype.F64: "f64", TensorMapDtype.TF32: "f32",
}  # fmt: skip
Coordinates = tuple[int, ...]


@lru_cache(maxsize=4096)
def _decoded(descriptor: bytes) -> TensorMap:
    try:
        return TensorMap.decode(descriptor)
    except ValueError as error:
        raise SimError(f"bad tensor map: {error}") from None


@lru_cache
def _form(parts: tuple[str, ...]) -> tuple[bool, int, bool]:
    """Of an opcode: whether it stores, its dimensions, and whether coordinates are those of single rows."""
    if unsupported := next((part for part in parts if part.startswith("im2col")), ""):
        raise SimError(f"mode .{unsupported} is not modeled, .tile, .tile::gather4 and .tile::scatter4 are")
    space = next(part for part in parts if part == "global" or part.startswith("shared"))
    dimensions = next((int(part[0]) for part in parts if part in ("1d", "2d", "3d", "4d", "5d")), 0)
    return space == "global", dimensions, not {"tile::gather4", "tile::scatter4"}.isdisjoint(parts)


def _map_at(ins: PtxInstruction, w: Warp, where: Coordinates) -> TensorMap:
    """The tensor map of a copy at (address of the map, coordinates)."""
    (_, dimensions, rows), (address, *place) = _form(ins.parts), where
    if len(place) != (1 + GATHERED_ROWS if rows else dimensions):
        raise SimError(f"{len(place)} coordinates for a {dimensions}d copy")
    if address % _MAP_ALIGNMENT:
        raise SimError(f"tensor map at {address:#x}: must be {_MAP_ALIGNMENT}-byte aligned")
    check_acquired(w, address)
    store, offset = find(w, "generic", address, FIELD_BYTES)
    tensor_map = _decoded(bytes(store.written(offset, FIELD_BYTES)))
    if tensor_map.rank != dimensions:
        raise SimError(f"a {dimensions}d copy through a tensor map of rank {tensor_map.rank}")
    if rows and tensor_map.box[1] != 1:
        raise SimError(f"{ins.opcode} through a tensor map whose box has {tensor_map.box[1]} rows: must be 1")
    if tensor_map.dtype is TensorMapDtype.FP4_UNPACKED and place[0] % 128:
        raise SimError(f"unpacked FP4 copy at innermost coordinate {place[0]}: must be a multiple of 128")
    return tensor_map


def _checked_chunks(tensor_map: TensorMap, place: Coordinates, cta: Cta, offset: int) -> Chunks:
    """Where the boxes of a copy lie in shared memory."""
    if offset % _SMEM_ALIGNMENT:
        raise SimError(f"TMA box at {cta} smem+{offset - SMEM_RESERVED} (hardware offset {offset}): must be {_SMEM_ALIGNMENT}-byte aligned")
    num_bytes = len(boxes_at(tensor_map, place)) * tensor_map.box_bytes
    cta.shared.check(offset, offset + num_bytes)
    return shared_chunks(offset, num_bytes, tensor_map.swizzle)


def _read_boxes(tensor_map: TensorMap, place: Coordinates, cta: Cta, actor: Actor) -> Bytes:
    """The bytes that a load reads, in the format of shared memory."""
    boxes = boxes_at(tensor_map, place)
    if len(boxes) == 1 and boxes[0].whole:
        return to_shared_format(tensor_map, tma.read_global_rows(cta, boxes[0].global_rows, actor))
    rows = np.zeros((len(boxes), boxes[0].row_count, boxes[0].row_bytes), np.uint8)
    for piece, box in zip(rows, boxes, strict=True):
        if not box.empty:
            piece[box.row_index, box.first : box.last] = tma.read_global_rows(cta, box.global_rows, actor)
    return to_shared_format(tensor_map, rows)


@all_lanes("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", reads=(ADDRESS, ADDRESS, ADDRESS, np.uint16))
def copy(ins: PtxInstruction, w: Warp, given: dict[int, tuple[Any, ...]]) -> None:
    """Load: cp.async.bulk.tensor.Nd[.cta_group].shared::{cta,cluster}.global ... [dst], [map, {coordinates}], [mbar] [, mask] [, policy];
    store: cp[.reduce].async.bulk.tensor.Nd.global.shared::cta[.OP] ... .bulk_group [map, {coordinates}], [source] [, policy]"""
    for operands in dict.fromkeys(given.values()):
        lanes = [lane for lane, own in given.items() if own == operands]
        (_store if _form(ins.parts)[0] else _load)(ins, w, lanes, *operands)


def _load(ins: PtxInstruction, w: Warp, lanes: list[int], first: int, source: Coordinates, barrier: int, mask: int = 0) -> None:
    tensor_map, place = _map_at(ins, w, source), source[1:]
    if "shared::cta" in ins.parts and (cta := shared_target(w, first)[0]) is not w.cta:
        raise SimError(f"TMA load .shared::cta into {cta}")
    at, read = partial(_checked_chunks, tensor_map, place), partial(_read_boxes, tensor_map, place)
    for lane in lanes:
        post_load(ins, w, lane, first, at, read, len(boxes_at(tensor_map, place)) * tensor_map.transaction_bytes, barrier, mask)


def _store(ins: PtxInstruction, w: Warp, lanes: list[int], target: Coordinates, where: int, policy: int = 0) -> None:
    tensor_map, place, reduction = _map_at(ins, w, target), target[1:], None
    if "reduce" in ins.parts:
        if len(lanes) > 1:
            raise SimError(f"{len(lanes)} lanes issue the same TMA reduction: elect one")
        if tensor_map.dtype not in _ELEMENT:
            raise SimError(f"TMA reduction of {tensor_map.dtype.name} elements")
        reduction = combination(next((part for part in ins.parts if part in (*COMBINED, "inc", "dec")), ""), _ELEMENT[tensor_map.dtype])
    elif len(lanes) > 1:  # hardware issues it once per warp, and the copies would be identical
        w.world.warnings[f"{line_of(w)}: TMA store issued by {len(lanes)} lanes, performed once"] += 1
    if tensor_map.dtype is TensorMapDtype.FP4_UNPACKED:
        raise SimError("TMA store through an unpacked FP4 tensor map")

    def write(cta: Cta, values: Bytes, actor: Actor) -> None:
        boxes = boxes_at(tensor_map, place)
        for piece, box in zip(values.reshape(len(boxes), boxes[0].row_count, boxes[0].row_bytes), boxes, strict=True):
            if not box.empty:
                tma.write_global_rows(cta, box.global_rows, piece[box.row_index, box.first : box.last], reduction, actor)

    post_store(w, lanes, where, partial(_checked_chunks, tensor_map, place), tma.TMA_STORE, write)
