"""TMA tensor copies: cp.async.bulk.tensor, its reduction and its prefetch, tiled mode and rows in any order (gather4, scatter4).

Source: PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "Tensors". A load of a CTA pair (`cta_group::2`) may signal
the barrier of either CTA of the pair. Out-of-bounds elements are filled with zeros and count as transaction bytes; in a store
they are clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from ...hardware.tensor_map import FIELD_BYTES, TensorMap, TensorMapDtype
from .. import tma_engine as tma
from ..chunks import GATHERED_ROWS, Chunks, boxes_at, shared_chunks, to_shared_format
from ..clock import Actor
from ..memory import SMEM_RESERVED, Bytes
from ..operands import COMBINED, Combination, combination
from ..parser import split_operands
from . import Binder, Cta, Mask, PtxInstruction, SimError, Straight, Warp, register, vector
from .access import find, line_of, shared_target
from .bulk import post_load, post_store
from .mbarrier import mbarrier_at
from .tensormap import check_acquired

_SMEM_ALIGNMENT = 128
_MAP_ALIGNMENT = 64
_UNSUPPORTED = ("im2col", "im2col::w", "im2col::w::128")
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


def _map_reader(ins: PtxInstruction, b: Binder, operand: str) -> Callable[[Warp, list[int]], list[tuple[TensorMap, Coordinates]]]:
    for mode in _UNSUPPORTED:
        if mode in ins.parts:
            raise SimError(f"{ins.opcode}: mode .{mode} is not modeled, .tile, .tile::gather4 and .tile::scatter4 are")
    dimensions = next((int(part[0]) for part in ins.parts if part in ("1d", "2d", "3d", "4d", "5d")), None)
    if dimensions is None:
        raise SimError(f"{ins.opcode}: no dimension")
    base, listed = split_operands(operand[1:-1])[:2]
    address, coordinate_readers = b.address(base), [b.read(c, np.int32) for c in vector(listed)]
    rows = any(part in ("tile::gather4", "tile::scatter4") for part in ins.parts)
    if len(coordinate_readers) != (1 + GATHERED_ROWS if rows else dimensions):
        raise SimError(f"{len(coordinate_readers)} coordinates for a {dimensions}d copy")

    def read(w: Warp, lanes: list[int]) -> list[tuple[TensorMap, Coordinates]]:
        where, coordinates = address(w), [reader(w) for reader in coordinate_readers]
        out = []
        for lane in lanes:
            at = int(where[lane])
            if at % _MAP_ALIGNMENT:
                raise SimError(f"tensor map at {at:#x}: must be {_MAP_ALIGNMENT}-byte aligned")
            check_acquired(w, at)
            store, offset = find(w, "generic", at, FIELD_BYTES)
            tensor_map = _decoded(bytes(store.written(offset, FIELD_BYTES)))
            if tensor_map.rank != dimensions:
                raise SimError(f"a {dimensions}d copy through a tensor map of rank {tensor_map.rank}")
            place = tuple(int(c[lane]) for c in coordinates)
            if rows and tensor_map.box[1] != 1:
                raise SimError(f"{ins.opcode} through a tensor map whose box has {tensor_map.box[1]} rows: must be 1")
            if tensor_map.dtype is TensorMapDtype.FP4_UNPACKED and place[0] % 128:
                raise SimError(f"unpacked FP4 copy at innermost coordinate {place[0]}: must be a multiple of 128")
            out.append((tensor_map, place))
        return out

    return read


def _checked_chunks(cta: Cta, offset: int, tensor_map: TensorMap, place: Coordinates) -> Chunks:
    """Where the boxes of a copy lie in shared memory."""
    if offset % _SMEM_ALIGNMENT:
        raise SimError(f"TMA box at {cta} smem+{offset - SMEM_RESERVED} (hardware offset {offset}): must be {_SMEM_ALIGNMENT}-byte aligned")
    num_bytes = len(boxes_at(tensor_map, place)) * tensor_map.box_bytes
    cta.shared.check(offset, offset + num_bytes)
    return shared_chunks(offset, num_bytes, tensor_map.swizzle)


def _read_boxes(tensor_map: TensorMap, place: Coordinates, cta: Cta, actor: Actor) -> Bytes:
    """What a load reads, as shared memory holds it."""
    boxes = boxes_at(tensor_map, place)
    if len(boxes) == 1 and boxes[0].whole:
        return to_shared_format(tensor_map, tma.read_global_rows(cta, boxes[0].global_rows, actor))
    rows = np.zeros((len(boxes), boxes[0].row_count, boxes[0].row_bytes), np.uint8)
    for piece, box in zip(rows, boxes, strict=True):
        if not box.empty:
            piece[box.row_index, box.first : box.last] = tma.read_global_rows(cta, box.global_rows, actor)
    return to_shared_format(tensor_map, rows)


@register("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
def build_copy(ins: PtxInstruction, b: Binder) -> Straight:
    """Load, store, or combine with global memory, by destination and name."""
    destination = next(part for part in ins.parts if part == "global" or part.startswith("shared"))
    return _build_store(ins, b) if destination == "global" else _build_load(ins, b)


def _build_load(ins: PtxInstruction, b: Binder) -> Straight:
    """cp.async.bulk.tensor.Nd[.cta_group].shared::{cta,cluster}.global ... [dst], [map, {coordinates}], [mbar] [, mask] [, policy]"""
    destination, barrier_address = b.address(ins.operands[0]), b.address(ins.operands[2])
    maps = _map_reader(ins, b, ins.operands[1])
    pair, multicast = "cta_group::2" in ins.parts, "multicast::cluster" in ins.parts
    own_only = "shared::cta" in ins.parts
    masks = b.read(ins.operands[3], np.uint16) if multicast else None

    def run(w: Warp, mask: Mask) -> None:
        lanes = w.lanes(mask)
        where, barriers, cta_masks = destination(w), barrier_address(w), masks(w) if masks else None
        for lane, (tensor_map, place) in zip(lanes, maps(w, lanes), strict=True):
            cta, offset = shared_target(w, int(where[lane]))
            barrier_cta, barrier_offset = shared_target(w, int(barriers[lane]))
            if own_only and cta is not w.cta:
                raise SimError(f"TMA load .shared::cta into {cta}")
            targets = _targets(w, cta, barrier_cta, int(cta_masks[lane]) if cta_masks is not None else None, pair)
            num_bytes = len(boxes_at(tensor_map, place)) * tensor_map.transaction_bytes
            for target, signalled in targets:
                chunks = _checked_chunks(target, offset, tensor_map, place)
                read, barrier = partial(_read_boxes, tensor_map, place, target), mbarrier_at(signalled, barrier_offset)
                post_load(w, lane, target, chunks, read, barrier, num_bytes)

    return Straight(run)


def _targets(w: Warp, cta: Cta, barrier_cta: Cta, cta_mask: int | None, pair: bool) -> list[tuple[Cta, Cta]]:
    """(receiving CTA, CTA whose barrier is signalled) for one load."""
    ctas = w.cta.cluster.ctas
    if cta_mask is None:
        same_pair = cta.cluster_rank >> 1 == barrier_cta.cluster_rank >> 1
        if barrier_cta is not cta and not (pair and same_pair):
            raise SimError(f"TMA load into {cta} signals an mbarrier of {barrier_cta}: only .cta_group::2 may, inside its pair")
        return [(cta, barrier_cta)]
    ranks = [r for r in range(16) if cta_mask >> r & 1]
    if not ranks or ranks[-1] >= len(ctas):
        raise SimError(f"multicast mask {cta_mask:#x} in a cluster of {len(ctas)} CTAs")
    parity = barrier_cta.cluster_rank & 1
    return [(ctas[r], ctas[(r & ~1) | parity] if pair else ctas[r]) for r in ranks]


def _build_store(ins: PtxInstruction, b: Binder) -> Straight:
    """cp[.reduce].async.bulk.tensor.Nd.global.shared::cta[.OP] ... .bulk_group [map, {coordinates}], [source] [, policy]"""
    maps, source, operation = _map_reader(ins, b, ins.operands[0]), b.address(ins.operands[1]), None
    if "reduce" in ins.parts:
        operation = next((part for part in ins.parts if part in (*COMBINED, "inc", "dec")), "")
        combination(operation, "u32")  # an unknown operation is an error at load time

    def run(w: Warp, mask: Mask) -> None:
        lanes = w.lanes(mask)
        where = source(w)
        groups: dict[tuple[TensorMap, Coordinates, int], list[int]] = {}
        for lane, (tensor_map, place) in zip(lanes, maps(w, lanes), strict=True):
            groups.setdefault((tensor_map, place, int(where[lane])), []).append(lane)
        for (tensor_map, place, address), same in groups.items():
            if len(same) > 1 and operation is not None:
                raise SimError(f"{len(same)} lanes issue the same TMA reduction: elect one")
            if len(same) > 1:  # hardware issues it once per warp, and the copies would be identical
                w.world.warnings[f"{line_of(w)}: TMA store issued by {len(same)} lanes, performed once"] += 1
            cta, offset = shared_target(w, address)
            if cta is not w.cta:
                raise SimError(f"TMA store from the shared memory of {cta}")
            if tensor_map.dtype is TensorMapDtype.FP4_UNPACKED:
                raise SimError("TMA store through an unpacked FP4 tensor map")
            if operation is not None and tensor_map.dtype not in _ELEMENT:
                raise SimError(f"TMA reduction of {tensor_map.dtype.name} elements")
            chunks = _checked_chunks(cta, offset, tensor_map, place)
            reduction = None if operation is None else combination(operation, _ELEMENT[tensor_map.dtype])
            post_store(w, same, chunks, tma.TMA_STORE, partial(_write_boxes, cta, tensor_map, place, reduction))

    return Straight(run)


def _write_boxes(cta: Cta, tensor_map: TensorMap, place: Coordinates, reduction: Combination | None, values: Bytes, actor: Actor) -> None:
    boxes = boxes_at(tensor_map, place)
    for piece, box in zip(values.reshape(len(boxes), boxes[0].row_count, boxes[0].row_bytes), boxes, strict=True):
        if not box.empty:
            tma.write_global_rows(cta, box.global_rows, piece[box.row_index, box.first : box.last], reduction, actor)
