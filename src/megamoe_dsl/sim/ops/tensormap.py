"""Tensor maps in memory: replacing fields, and the tensormap proxy.

Source: PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar, fence" (`fence.proxy.tensormap::generic`); CUDA Programming
Guide, "Using TMA to transfer multi-dimensional arrays". A map in global memory must be acquired in every CTA before TMA uses it: at
`.sys` scope what the host has copied there, and after the release of the last change what a kernel has written. A map in parameter
space needs no fence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...hardware.tensor_map import DESCRIPTOR_BYTES, FIELD_BYTES
from ..clock import LaneAgents
from ..memory import SHARED_BASE, Bytes
from ..sync import SCOPES, in_scope
from . import Binder, Cta, Handler, Mask, PtxInstruction, SimError, Straight, Warp, converged, each_lane, register
from .access import scope, shared_target, state_space

_TF32 = 7 | 1 << 9  # as bits of the element field's word from bit 7 on: the TF32 flag is bit 16
_ELEMENTS = {**{code: code for code in range(11)}, 11: _TF32, 12: _TF32, 13: 11, 14: 12, 15: 13}
"""PTX element type to bits [7:16] of word 2."""

FIELDS = (
    "global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype", "interleave_layout", "swizzle_mode",
    "fill_mode",
)  # fmt: skip
WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")


@dataclass
class MapChange:
    """The last change of a map in global memory: CTA, who and when; `released` once it is visible to the tensormap proxy."""

    cta: Cta
    by: LaneAgents
    when: int
    released: bool


def _set_bits(words: np.ndarray, index: int, low: int, count: int, value: int) -> None:
    mask = ((1 << count) - 1) << low
    words[index] = (int(words[index]) & ~mask & 0xFFFFFFFF) | (value << low & mask)


def replace_field(descriptor: Bytes, name: str, ordinal: int, value: int) -> Bytes:
    """A copy of the 128 bytes of a map with one field replaced. `rank` is given minus one, strides in bytes. Raises SimError for a field or
    value that is not modeled."""
    words = np.frombuffer(descriptor.tobytes(), np.uint32).copy()
    if name == "global_address":
        words[0], words[1] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    elif name == "rank":
        _set_bits(words, 2, 4, 3, value)
    elif name == "global_dim":
        words[8 + ordinal] = (value - 1) & 0xFFFFFFFF
    elif name == "global_stride":
        if value % 16:
            raise SimError(f"tensormap.replace: stride {value} must be a multiple of 16 bytes")
        words[3 + ordinal] = value >> 4 & 0xFFFFFFFF
        _set_bits(words, 7, 4 * ordinal, 4, value >> 36)
    elif name == "box_dim":
        _set_bits(words, 14 if ordinal else 13, 8 * (ordinal - 1) if ordinal else 24, 8, value - 1)
    elif name == "elemtype" and value in _ELEMENTS:
        _set_bits(words, 2, 7, 4, _ELEMENTS[value])
        _set_bits(words, 2, 16, 1, _ELEMENTS[value] >> 9)
    elif name == "swizzle_mode" and 0 <= value <= 3:
        _set_bits(words, 2, 13, 2, value)
    elif (name, value) not in (("element_stride", 1), ("interleave_layout", 0), ("fill_mode", 0)):
        raise SimError(f"tensormap.replace of {name} by {value} is not modeled")
    return words.view(np.uint8)


_CHANGES = "tensor map changes"


def _size(text: str) -> None:
    if int(text, 0) != DESCRIPTOR_BYTES:
        raise SimError(f"size {text}: must be {DESCRIPTOR_BYTES}")


def _changes(w: Warp) -> dict[int, MapChange]:
    assert w.world.race is not None
    return w.world.race.state.setdefault(_CHANGES, {})  # type: ignore[no-any-return]


def _write_global(w: Warp, address: int, values: Bytes, released: bool) -> None:
    """Store a whole map, and remember who did."""
    allocation, offset = w.world.memory.writable(address, DESCRIPTOR_BYTES)
    if race := w.world.race:
        race.write_bytes(allocation, slice(offset, offset + DESCRIPTOR_BYTES), 1, w)
        _changes(w)[address] = MapChange(w.cta, w.order.agents, w.order.now(), released)
    w.world.memory.write(address, values)


def _shared(w: Warp, address: int) -> tuple[Cta, slice]:
    cta, offset = shared_target(w, address)
    if cta is not w.cta or offset % DESCRIPTOR_BYTES:
        raise SimError(f"tensor map at {cta} smem {offset:#x}: must be in {w.cta} and {DESCRIPTOR_BYTES}-byte aligned")
    return cta, slice(offset, offset + DESCRIPTOR_BYTES)


def _read_shared(cta: Cta, start: int) -> Bytes:
    """A map in shared memory, whose fields at least must have been written."""
    cta.shared.read(start, FIELD_BYTES)
    return cta.shared.read(start, DESCRIPTOR_BYTES, uninitialized_ok=True)


@register("tensormap.replace")
def build_replace(ins: PtxInstruction, b: Binder) -> Straight:
    """tensormap.replace.tile.FIELD[.global | .shared::cta].b1024.{b32, b64} [address], [ordinal,] value"""
    name = ins.parts[3]
    if ins.parts[2] != "tile" or name not in FIELDS:
        raise SimError(f"{ins.opcode} is not modeled: tile mode and {', '.join(FIELDS)} are")
    space, address = state_space(ins.parts), b.address(ins.operands[0])
    ordinal = b.read(ins.operands[1], np.uint32) if name in WITH_ORDINAL else None
    value = b.read(ins.operands[-1], np.uint64 if ins.parts[-1] == "b64" else np.uint32)

    @each_lane(address, value, ordinal)
    def run(w: Warp, lane: int, at: int, new: int, which: int | None) -> None:
        if space == "shared" or (space == "generic" and at >= SHARED_BASE):
            cta, piece = _shared(w, at)
            changed = replace_field(_read_shared(cta, piece.start), name, which or 0, new)
            if w.world.race:
                w.world.race.write_bytes(cta.shared, piece, 1, w)
            cta.shared.write(piece.start, changed)
        else:
            _write_global(w, at, replace_field(w.world.memory.read(at, DESCRIPTOR_BYTES), name, which or 0, new), released=False)

    return run


@register("tensormap.cp_fenceproxy")
def build_copy(ins: PtxInstruction, b: Binder) -> Handler:
    """Copy and release: tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned [global], [shared], 128"""
    _size(ins.operands[2])
    destination, source = b.address(ins.operands[0]), b.address(ins.operands[1])

    @converged
    def run(w: Warp, mask: Mask) -> None:
        lane = w.first(mask)
        cta, piece = _shared(w, int(source(w)[lane]))
        values = _read_shared(cta, piece.start)
        if w.world.race:
            w.world.race.read_bytes(cta.shared, piece, 1, w)
        _write_global(w, int(destination(w)[lane]), values, released=True)

    return run


@register("fence.proxy.tensormap::generic")
def build_fence(ins: PtxInstruction, b: Binder) -> Straight:
    """fence.proxy.tensormap::generic.release.SCOPE, for the maps that this warp has changed; .acquire.SCOPE [address], 128"""
    level = scope(ins.parts, "gpu")
    if "acquire" not in ins.parts:
        return Straight(lambda w, mask: _release(w))
    _size(ins.operands[1])
    address = b.address(ins.operands[0])

    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None:
            maps, where, changes = w.cta.state.setdefault("acquired maps", {}), address(w), _changes(w)
            for at in {int(where[lane]) for lane in w.lanes(mask)}:
                if (change := changes.get(at)) is None:  # the host's copy
                    reached = level == SCOPES["sys"]
                else:
                    reached = change.released and in_scope(level, change.cta, w.cta) and w.order.has_seen(change.by, change.when)
                if reached:
                    maps.setdefault(at, []).append((w.order.agents, w.order.now(), change))

    return Straight(run)


def _release(w: Warp) -> None:
    if w.world.race is not None:
        for change in _changes(w).values():
            if change.by is w.order.agents:
                change.released, change.when = True, w.order.now()


def check_acquired(w: Warp, address: int) -> None:
    """A finding if no fence of this CTA for the map at `address` happened before, and after its last change."""
    race = w.world.race
    if race is None or address >= SHARED_BASE:
        return
    change = _changes(w).get(address)
    known = w.state.setdefault("acquired maps", {})  # what lanes have seen acquired stays so until the next change
    if known.get(key := (address, w.order.lanes()), known) is change:
        return
    acquired = w.cta.state.get("acquired maps", {}).get(address, ())
    if not any(seen is change and w.order.has_seen(agents, when) for agents, when, seen in acquired):
        where = "{}+{}".format(*race.memory.find(address, DESCRIPTOR_BYTES))
        first = "the host's copy" if change is None else change.by.agent
        race.report("tensor map used without fence.proxy.tensormap", first, "tensor map", where, 0, w)
    else:
        known[key] = change
