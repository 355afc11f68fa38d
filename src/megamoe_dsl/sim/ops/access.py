"""Addresses and qualifiers of instructions, and lane-wise loads and stores: resolution, bounds, alignment, initialization, race checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cta import Cta, Warp
from ..errors import SimError
from ..interfaces import Origin
from ..lanes import Lanes, Mask, addresses, put, span, stacked, take, uniform
from ..memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE, SMEM_BYTES, WINDOW_MASK, WINDOW_SHIFT, Allocation, ByteStore, SharedMemory
from ..report import describe_line
from ..sync import SCOPES

_SPACES = ("shared", "global", "param", "local", "const")


def line_of(w: Warp) -> str:
    return describe_line(w.line, w.world.kernels[w.kernel], "")


def origin(w: Warp) -> Origin:
    """Names the instruction that posts an asynchronous action."""
    line = w.line
    return lambda: f"{w} {describe_line(line, w.world.kernels[w.kernel], '')}"


def state_space(parts: tuple[str, ...]) -> str:
    """The state space in an opcode: shared (both windows), global, param, local, const, or generic."""
    return next((space for part in parts if (space := part.split("::")[0]) in _SPACES), "generic")


def semantics(parts: tuple[str, ...], default: str) -> str:
    """weak, relaxed, acquire, release or acq_rel; volatile counts as relaxed (PTX ISA, "Memory Consistency Model")."""
    if "volatile" in parts or "mmio" in parts:
        return "relaxed"
    return next((part for part in parts if part in ("weak", "relaxed", "acquire", "release", "acq_rel")), default)


def scope(parts: tuple[str, ...], default: str) -> int:
    """The scope qualifier as a number, see `sync.SCOPES`. `volatile` has system scope."""
    return SCOPES[next((part for part in parts if part in SCOPES), "sys" if "volatile" in parts or "mmio" in parts else default)]


def by_value(lanes: list[int], *columns: Lanes) -> Iterable[tuple[Sequence[int], list[int]]]:
    """Lanes grouped by their integers in some columns; registers of lanes that are not here mostly agree too."""
    if len(lanes) == 1 or all(map(uniform, columns)):
        return [([column.item(lanes[0]) for column in columns], lanes)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for lane in lanes:
        groups.setdefault(tuple([column.item(lane) for column in columns]), []).append(lane)
    return groups.items()


def shared_target(w: Warp, address: int) -> tuple[Cta, int]:
    """A shared or generic address to its CTA and byte offset (reserved bytes included)."""
    address = int(address)
    if SHARED_BASE <= address < PARAM_BASE:
        address -= SHARED_BASE
    rank, offset = address >> WINDOW_SHIFT, address & WINDOW_MASK
    ctas = w.cta.cluster.ctas
    if address < 0 or rank >= len(ctas):
        raise SimError(f"shared address {address:#x}: no such CTA in a cluster of {len(ctas)}")
    if offset >= SMEM_BYTES:
        raise SimError(f"shared address {address:#x} out of range")
    return ctas[rank], offset


Part = tuple[ByteStore, NDArray[np.int64], Any]


def find(w: Warp, space: str, address: int, size: int) -> tuple[ByteStore, int]:
    """The store of an address that is not local, and the byte offset there. Checks bounds and alignment."""
    if address & (size - 1):
        raise SimError(f"misaligned {space} access: {address:#x} is not a multiple of {size}")
    if space == "generic":
        if address >= LOCAL_BASE:
            raise SimError("one access to local and to other memory is not supported")
        space = "global" if address < SHARED_BASE else "shared" if address < PARAM_BASE else "param"
    if space == "shared":
        cta, offset = shared_target(w, address)
        cta.shared.check(offset, offset + size)
        return cta.shared, offset
    if space == "global":
        return w.world.memory.find(address, size)
    parameters, offset = w.cta.parameters, address - PARAM_BASE if address >= PARAM_BASE else address
    if offset + size > parameters.limit:
        raise SimError(f"parameter access out of bounds: {offset:#x}")
    return parameters, offset


def resolve(w: Warp, space: str, where: NDArray[np.int64], size: int, mask: Mask = None) -> list[Part]:
    """Lane addresses by the memory they fall in: (store, byte offsets, lanes or slice(None)). Almost always there is one part. Checks
    bounds and alignment. `mask` says which lanes the addresses belong to (for local memory)."""
    low, high, aligned = span(where, size)
    if _is_local(space, low):
        base = LOCAL_BASE if low >= LOCAL_BASE else 0
        if not aligned:
            raise SimError(f"misaligned local access: not all of {low:#x} to {high:#x} are multiples of {size}")
        if high - base + size > w.kernel.local_bytes:
            raise SimError(f"local access out of bounds: {high - base:#x}")
        return [(w.local_memory(), where - base + w.kernel.local_stride * np.array(w.lanes(mask)), slice(None))]
    store, offset = find(w, space, low, size)
    base = low - offset
    if aligned and high - base + size <= store.limit:
        return [(store, addresses(where, -base) if base else where, slice(None))]
    groups: dict[int, tuple[ByteStore, list[int], list[int]]] = {}
    for lane, address in enumerate(where.tolist()):
        store, offset = find(w, space, address, size)
        _, offsets, lanes = groups.setdefault(id(store), (store, [], []))
        offsets.append(offset)
        lanes.append(lane)
    return [(store, np.array(offsets), np.array(lanes)) for store, offsets, lanes in groups.values()]


def _is_local(space: str, address: int) -> bool:
    return space == "local" or (space == "generic" and address >= LOCAL_BASE)


def _uninitialized(w: Warp, store: ByteStore, offset: int, seen: bool) -> None:
    """A load of a byte that nobody wrote raises SimError, or warns once if it is shared memory and the run has `load_uninitialized`."""
    if not isinstance(store, SharedMemory) or not w.world.assumptions.load_uninitialized:
        raise SimError(f"read of uninitialized {store.where(offset)}")
    if not seen:
        w.world.warnings[f"{line_of(w)}: load of uninitialized shared memory"] += 1


def gather(
    w: Warp, space: str, where: Lanes, size: int, count: int, mask: Mask, strong: bool = False, parts: bool = False, seen: bool = False
) -> Lanes:
    """Load `count` consecutive elements of `size` bytes for each active lane: an array [active lanes, count] ([active lanes] when 1).
    `parts`: what the warp loads together, each lane a part of every row. `seen`: the race detector knows of it."""
    if mask is not None:
        where = stacked([where], mask)
    race, total = w.world.race, size * count
    if not strong and uniform(where) and not _is_local(space, first := int(where[0])):
        w.mask = mask
        store, offset = find(w, space, first, total)
        if store.valid is not None and b"\0" in store.valid[offset : offset + total].tobytes():
            _uninitialized(w, store, offset, seen)
        if race and not seen and isinstance(store, Allocation | SharedMemory):
            race.read_bytes(store, slice(offset, offset + total), total, w, parts)
        return store.rows(size, count)[offset // total : offset // total + 1].repeat(len(where), axis=0)
    out: Any = None
    for store, offsets, lanes in resolve(w, space, where, total, mask):
        if (values := take(store.rows(size, count), store.valid, offsets, total)) is None:
            index = offsets // total
            if (bad := store.first_uninitialized(index, total)) is not None:
                _uninitialized(w, store, bad, seen)
            values = store.rows(size, count).take(index, 0)
        if race and not seen and isinstance(store, Allocation | SharedMemory):
            w.mask = mask if isinstance(lanes, slice) else _some(w, mask, lanes)
            if strong:
                race.strong_bytes(store, offsets, total, w, writes=False)
            else:
                race.read_bytes(store, offsets, total, w, parts)
        if isinstance(lanes, slice):
            return values
        w.mask = mask
        if out is None:
            out = np.zeros((len(where), *values.shape[1:]), values.dtype)
        out[lanes] = values
    return out


def scatter(
    w: Warp, space: str, where: Lanes, size: int, count: int, values: Lanes, mask: Mask, strong: bool = False, parts: bool = False
) -> None:
    """Store rows of `count` unsigned elements of `size` bytes: `values` [active lanes, count]. `parts` as in `gather`."""
    if mask is not None:
        where = stacked([where], mask)
    race, total = w.world.race, size * count
    w.world.progress += 1
    for store, offsets, lanes in resolve(w, space, where, total, mask):
        if store.read_only:
            raise SimError(f"write to read-only buffer {store}+{int(offsets[0])}")
        if not isinstance(store, Allocation | SharedMemory) and store is not w.local:
            raise SimError("store to parameter memory")
        if race and store is not w.local:
            w.mask = mask if isinstance(lanes, slice) else _some(w, mask, lanes)
            if strong:
                race.strong_bytes(store, offsets, total, w, writes=True)
            else:
                race.write_bytes(store, offsets, total, w, parts)
        w.mask = mask
        if not put(store.rows(size, count), store.valid, offsets, total, values[lanes]):
            index = offsets // total
            store.rows(size, count)[index] = values[lanes]
            store.mark(index, total)


def _some(w: Warp, mask: Mask, places: NDArray[np.int64]) -> Lanes:
    out = np.zeros(32, np.bool_)
    out[np.array(w.lanes(mask))[places]] = True
    return out
