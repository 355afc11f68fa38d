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
from ..memory import SHARED_BASE, Bytes, SharedMemory
from ..sync import SCOPES, in_scope
from . import ADDRESS, Binder, Cta, Mask, PtxInstruction, SimError, Straight, Warp, each_lane, register, whole_warp
from .access import scope, shared_target, state_space

_TF32 = 7 | 1 << 4  # the fifth bit is a flag
_ELEMENTS = {**{code: code for code in range(11)}, 11: _TF32, 12: _TF32, 13: 11, 14: 12, 15: 13}  # PTX element type to the hardware's.


@dataclass
class MapChange:
    """The last change of a map in global memory: CTA, who and when; `released` once it is visible to the tensormap proxy."""

    cta: Cta
    by: LaneAgents
    when: int
    released: bool


def replace_field(descriptor: Bytes, name: str, ordinal: int, value: int) -> Bytes:
    """The 128 bytes of a map with one field replaced. `rank` is given minus one, strides in bytes. Raises SimError."""
    if name == "global_stride" and value % 16:
        raise SimError(f"tensormap.replace: stride {value} must be a multiple of 16 bytes")
    box = (14, 8 * (ordinal - 1), 8) if ordinal else (13, 24, 8)
    fields: dict[str, tuple[int | None, list[tuple[int, int, int]]]] = {  # its bits, and where they go: words, lowest bits, numbers of bits
        "global_address": (value, [(0, 0, 32), (1, 0, 32)]),
        "rank": (value, [(2, 4, 3)]),
        "global_dim": (value - 1, [(8 + ordinal, 0, 32)]),
        "global_stride": (value >> 4, [(3 + ordinal, 0, 32), (7, 4 * ordinal, 4)]),
        "box_dim": (value - 1, [box]),
        "elemtype": (_ELEMENTS.get(value), [(2, 7, 4), (2, 16, 1)]),
        "swizzle_mode": (value if 0 <= value <= 3 else None, [(2, 13, 2)]),
    }
    default = (name, value) in (("element_stride", 1), ("interleave_layout", 0), ("fill_mode", 0))
    bits, places = fields.get(name, (0 if default else None, []))
    if bits is None:
        raise SimError(f"tensormap.replace of {name} by {value} is not modeled")
    words = np.frombuffer(descriptor.tobytes(), np.uint32).copy()
    for word, low, count in places:
        mask = (1 << count) - 1
        words[word] = int(words[word]) & ~(mask << low) | (bits & mask) << low
        bits >>= count
    return words.view(np.uint8)


_CHANGES = "tensor map changes"


def _size(text: str) -> None:
    if int(text, 0) != DESCRIPTOR_BYTES:
        raise SimError(f"size {text}: must be {DESCRIPTOR_BYTES}")


def _changes(w: Warp) -> dict[int, MapChange]:
    return w.world.race.state.setdefault(_CHANGES, {})  # type: ignore[no-any-return]


def _write_global(w: Warp, address: int, values: Bytes, released: bool) -> None:
    """Stores a whole map and records the writer."""
    allocation, offset = w.world.memory.writable(address, DESCRIPTOR_BYTES)
    w.world.race.write_bytes(allocation, slice(offset, offset + DESCRIPTOR_BYTES), 1, w)
    _changes(w).update({address: MapChange(w.cta, w.order.agents, w.order.now(), released)})
    allocation.put(offset, values)


def _shared(w: Warp, address: int) -> tuple[SharedMemory, slice]:
    """Where a map is in shared memory; its fields at least must have been written."""
    cta, start = shared_target(w, address)
    end = start + DESCRIPTOR_BYTES
    if cta is not w.cta or start % DESCRIPTOR_BYTES:
        raise SimError(f"tensor map at {cta} smem {start:#x}: must be in {w.cta} and {DESCRIPTOR_BYTES}-byte aligned")
    cta.shared.read(start, FIELD_BYTES)
    cta.shared.check(start, end)
    return cta.shared, slice(start, end)


@each_lane("tensormap.replace", reads=(ADDRESS, np.uint64, np.uint64))
def replace(ins: PtxInstruction, w: Warp, lane: int, at: int, *values: int) -> None:
    """tensormap.replace.tile.FIELD[.global | .shared::cta].b1024.{b32, b64} [address], [ordinal,] value"""
    name, space, ordinal = ins.parts[3], state_space(ins.parts), values[0] if len(values) > 1 else 0
    if ins.parts[2] != "tile":
        raise SimError(f"{ins.opcode} is not modeled: tile mode is")
    if space == "shared" or (space == "generic" and at >= SHARED_BASE):
        shared, piece = _shared(w, at)
        changed = replace_field(shared.data[piece], name, ordinal, values[-1])
        w.world.race.write_bytes(shared, piece, 1, w)
        shared.write(piece.start, changed)
    else:
        _write_global(w, at, replace_field(w.world.memory.read(at, DESCRIPTOR_BYTES), name, ordinal, values[-1]), released=False)


@whole_warp("tensormap.cp_fenceproxy", reads=(ADDRESS, ADDRESS))
def copy_and_release(ins: PtxInstruction, w: Warp, destination: int, source: int) -> None:
    """Copy and release: tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned [global], [shared], 128"""
    _size(ins.operands[2])
    shared, piece = _shared(w, source)
    w.world.race.read_bytes(shared, piece, 1, w)
    _write_global(w, destination, shared.data[piece], released=True)


@register("fence.proxy.tensormap::generic")
def build_fence(ins: PtxInstruction, b: Binder) -> Straight:
    """fence.proxy.tensormap::generic.release.SCOPE, for the maps that this warp has changed; .acquire.SCOPE [address], 128"""
    level, address = scope(ins.parts, "gpu"), None
    if "acquire" in ins.parts:
        _size(ins.operands[1])
        address = b.address(ins.operands[0])

    def run(w: Warp, mask: Mask) -> None:
        if address is None:
            for own in _changes(w).values():
                if own.by is w.order.agents:
                    own.released, own.when = True, w.order.now()
            return
        maps, where, changes = w.cta.state.setdefault("acquired maps", {}), address(w), _changes(w)
        for at in {int(where[lane]) for lane in w.lanes(mask)}:
            if (change := changes.get(at)) is None:  # the host's copy
                reached = level == SCOPES["sys"]
            else:
                reached = change.released and in_scope(level, change.cta, w.cta) and w.order.has_seen(change.by, change.when)
            if reached:
                maps.setdefault(at, []).append((w.order.agents, w.order.now(), change))

    return Straight(run)


def check_acquired(w: Warp, address: int) -> None:
    """A finding if no fence of this CTA for the map at `address` happened before, and after its last change."""
    race = w.world.race
    if not race or address >= SHARED_BASE:
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
