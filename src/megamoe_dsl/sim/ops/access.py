"""Lane-wise loads and stores: address resolution, bounds, alignment, initialisation and race checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SimError
from ..interfaces import CtaLike, WarpLike
from ..lanes import Lanes, Mask, uniform
from ..memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE, SMEM_RESERVED, WINDOW_MASK, WINDOW_SHIFT, Allocation, ByteStore, SharedMemory
from .common import line_of, shared_target

Part = tuple[ByteStore, NDArray[np.int64], Any, "CtaLike | None"]


def resolve(w: WarpLike, space: str, where: NDArray[np.int64], size: int, mask: Mask = None) -> list[Part]:
    """Lane addresses by the memory they fall in: (store, byte offsets, lanes or slice(None), CTA when shared).

    Almost always there is one part. Checks bounds and alignment. `mask` says which lanes the addresses belong to (for local memory).
    """
    addresses = where.tolist()
    low, high = min(addresses), max(addresses)
    if space == "generic":
        if low < SHARED_BASE <= high:
            if high >= PARAM_BASE:
                raise SimError("one access to global and to local or parameter memory is not supported")
            return [
                (store, offsets, np.flatnonzero(keep)[lanes], cta)
                for keep in (where < SHARED_BASE, where >= SHARED_BASE)
                for store, offsets, lanes, cta in resolve(w, space, where[keep], size)
            ]
        space = "global"
        if low >= LOCAL_BASE:
            space, where, low, high = "local", where - LOCAL_BASE, low - LOCAL_BASE, high - LOCAL_BASE
        elif low >= PARAM_BASE:
            space = "param"
        elif low >= SHARED_BASE:
            space, where, low, high = "shared", where - SHARED_BASE, low - SHARED_BASE, high - SHARED_BASE
    if size > 1 and (where & (size - 1)).tobytes() != bytes(where.nbytes):
        bad = int(where[np.argmax(where % size != 0)])
        raise SimError(f"misaligned {space} access: {bad:#x} is not a multiple of {size}")
    if space == "shared":
        return _resolve_shared(w, where, low, high, size)
    if space == "global":
        memory = w.world.memory
        allocation, _ = memory.find(low, size)
        if high + size <= allocation.end:
            return [(allocation, where - allocation.base, slice(None), None)]
        bases = np.array([memory.find(a, size)[0].base for a in addresses])
        groups = [(base, np.flatnonzero(bases == base)) for base in np.unique(bases)]
        return [(memory.find(int(base), 1)[0], where[lanes] - base, lanes, None) for base, lanes in groups]
    if space == "local":
        if high + size > w.kernel.local_bytes:
            raise SimError(f"local access out of bounds: {high:#x}")
        return [(w.local_memory(), where + w.kernel.local_stride * np.array(w.lanes(mask)), slice(None), None)]
    parameters = w.cta.parameters
    base = PARAM_BASE if low >= PARAM_BASE else 0
    if high - base + size > len(parameters.data):
        raise SimError(f"parameter access out of bounds: {high - base:#x}")
    return [(parameters, where - base, slice(None), None)]


def _resolve_shared(w: WarpLike, where: NDArray[np.int64], low: int, high: int, size: int) -> list[Part]:
    if low >> WINDOW_SHIFT == high >> WINDOW_SHIFT:
        cta, offset = shared_target(w, low)
        cta.shared.check(offset, (high & WINDOW_MASK) + size)
        return [(cta.shared, where & WINDOW_MASK if low > WINDOW_MASK else where, slice(None), cta)]
    ranks, parts = where >> WINDOW_SHIFT, list[Part]()
    for rank in np.unique(ranks):
        lanes = np.flatnonzero(ranks == rank)
        cta, _ = shared_target(w, int(where[lanes[0]]))
        offsets = where[lanes] & WINDOW_MASK
        cta.shared.check(int(offsets.min()), int(offsets.max()) + size)
        parts.append((cta.shared, offsets, lanes, cta))
    return parts


def _uninitialised(store: ByteStore, offset: int) -> SimError:
    if isinstance(store, SharedMemory):
        return SimError(f"read of uninitialised shared memory: {store.label} smem+{offset - SMEM_RESERVED}")
    return SimError(f"read of uninitialised global memory: {store!r}+{offset}")


def gather(
    w: WarpLike, space: str, where: Lanes, size: int, count: int, mask: Mask, strong: bool = False, parts: bool = False, seen: bool = False
) -> Lanes:
    """Load `count` consecutive elements of `size` bytes for each active lane: an array [active lanes, count] ([active lanes] when 1).

    `parts`: what the warp loads together, each lane a part of every row. `seen`: the race detector knows of it.
    """
    if mask is not None:
        where = where[mask]
    race, total, active = w.world.race, size * count, len(where)
    out: Any = None
    if broadcast := not strong and uniform(where):
        where = where[:1]
    for store, offsets, lanes, cta in resolve(w, space, where, total, mask):
        index = _row_index(store, offsets, total)
        if (bad := store.first_uninitialised(index, total)) is not None:
            if cta is None or not w.world.load_uninitialised:
                raise _uninitialised(store, bad)
            if not seen:
                w.world.warnings[f"{line_of(w)}: load of uninitialised shared memory"] += 1
        if race is not None and not seen and (cta is not None or isinstance(store, Allocation)):
            w.mask = mask if isinstance(lanes, slice) else _some(w, mask, lanes)
            if strong:
                shadow = race.shadow_of(store, cta)
                race.strong(shadow, shadow.index(offsets, total), w, writes=False)
            else:
                places = slice(first := int(offsets[0]), first + total) if broadcast else offsets
                if cta is not None:
                    race.read_shared(cta, places, total, w, parts)
                else:
                    race.read_global(store, places, total, w)  # type: ignore[arg-type]
        values = store.rows(size, count).take(index, 0)
        if isinstance(lanes, slice):
            return values if len(values) == active else values.repeat(active, axis=0)
        w.mask = mask
        if out is None:
            out = np.zeros((len(where), *values.shape[1:]), values.dtype)
        out[lanes] = values
    return out


def scatter(
    w: WarpLike, space: str, where: Lanes, size: int, count: int, values: Lanes, mask: Mask, strong: bool = False, parts: bool = False
) -> None:
    """Store rows of `count` unsigned elements of `size` bytes, `values` being [32, count] ([32] when it is 1); `parts` as in `gather`."""
    if mask is not None:
        where, values = where[mask], values[mask]
    race, total = w.world.race, size * count
    w.world.progress += 1
    for store, offsets, lanes, cta in resolve(w, space, where, total, mask):
        if isinstance(store, Allocation):
            if store.read_only:
                raise SimError(f"write to read-only buffer {store}+{int(offsets[0])}")
        elif cta is None and store is not w.local:
            raise SimError("store to parameter memory")
        if race is not None and store is not w.local:
            w.mask = mask if isinstance(lanes, slice) else _some(w, mask, lanes)
            if strong:
                shadow = race.shadow_of(store, cta)
                race.strong(shadow, shadow.index(offsets, total), w, writes=True)
            elif cta is not None:
                race.write_shared(cta, offsets, total, w, parts)
            else:
                race.write_global(store, offsets, total, w)  # type: ignore[arg-type]
        w.mask = mask
        index = _row_index(store, offsets, total)
        store.rows(size, count)[index] = values[lanes]
        store.mark(index, total)


def _some(w: WarpLike, mask: Mask, places: NDArray[np.int64]) -> Lanes:
    """The lanes at some places among those of a mask."""
    out = np.zeros(32, np.bool_)
    out[np.array(w.lanes(mask))[places]] = True
    return out


def _row_index(store: ByteStore, offsets: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Byte offsets to row numbers of `total` bytes (alignment was checked on the address, buffers may start anywhere)."""
    if isinstance(store, Allocation) and store.base % total:
        raise SimError(f"buffer {store} is not aligned to the {total}-byte accesses the kernel makes")
    return offsets // total if total > 1 else offsets
