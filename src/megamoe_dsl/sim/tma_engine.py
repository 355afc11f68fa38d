"""What bulk copies of every kind share: race-detector actors, strided global access and chunked shared access.

Loads are agents per mbarrier. Stores are two agents per warp, one that reads the source in shared memory and one that writes the
destination, because `wait_group.read` orders only the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accessor import Actor
from .chunks import CHUNK, Chunks
from .clock import Clock
from .errors import SimError
from .formats import bf16_to_f32, f32_to_bf16
from .interfaces import CtaLike, WarpLike, WorldLike
from .mbarrier import Mbarrier, finish_async_store
from .memory import B128, SMEM_RESERVED, Allocation, Bytes
from .race import Race
from .swizzle import IndexArray

_TYPES: dict[str, type] = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_OPERATIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@dataclass(frozen=True)
class Issue:
    """What an asynchronous operation remembers of the instruction that issued it."""

    world: WorldLike
    line: int
    clock: Clock | None

    @classmethod
    def of(cls, w: WarpLike, lane: int) -> Issue:
        """Snapshot at issue by a lane."""
        return cls(w.world, w.line, w.world.race.snapshot(w, w.order.whole(1 << lane)) if w.world.race else None)

    def load_actor(self, barrier: Mbarrier) -> Actor | None:
        """The load engine behind `barrier`, about to make one more copy."""
        race = self.world.race
        if race is None or self.clock is None:
            return None
        if barrier.agent < 0:
            barrier.agent = race.agent(f"TMA load for {barrier!r}", barrier.cta)
        barrier.accesses += 1
        return Actor(barrier.agent, _advanced(race, self.clock, barrier.agent, barrier.accesses), self.line)


@dataclass(frozen=True)
class StoreActors:
    """The two sides of a store; `clock` is what completing it tells a waiter."""

    source: Actor
    destination: Actor
    clock: Clock

    @classmethod
    def of(cls, w: WarpLike, lane: int) -> StoreActors | None:
        """Snapshot at issue by a lane; None when the detector is off."""
        race = w.world.race
        if race is None:
            return None
        agents = w.state.get("bulk store agents")
        if agents is None:
            agents = w.state["bulk store agents"] = tuple(race.agent(f"{w} bulk store {side}", w.cta) for side in ("source", "destination"))
        count = w.state["bulk stores"] = w.state.get("bulk stores", 0) + 1
        clock = race.snapshot(w, w.order.whole(1 << lane))
        for agent in agents:
            clock = _advanced(race, clock, agent, count)
        return cls(Actor(agents[0], clock, w.line), Actor(agents[1], clock, w.line), clock)


def _advanced(race: Race, clock: Clock, agent: int, count: int) -> Clock:
    out = clock.copy()
    out.fit(race.width)
    out.set(agent, count)
    return out


def finish_load(barrier: Mbarrier, size: int, actor: Actor | None) -> None:
    """Count the bytes; waiters of the phase learn of the copy."""
    finish_async_store(barrier, size, actor.clock if actor else None)


def _locate(world: WorldLike, rows: IndexArray, width: int, write: bool) -> tuple[Allocation, IndexArray]:
    low, high = int(rows.min()), int(rows.max()) + width
    memory = world.memory
    allocation, offset = memory.writable(low, high - low) if write else memory.find(low, high - low)
    return allocation, rows - low + offset


def _spans(offsets: IndexArray, width: int) -> tuple[IndexArray | slice, int]:
    """Row offsets as the race detector wants them: one slice when the rows touch, else aligned pieces."""
    low, high = int(offsets[0]), int(offsets[-1]) + width
    if high - low == width * len(offsets):
        return slice(low, high), 1
    unit = CHUNK
    while width % unit or (offsets % unit).any():
        unit //= 2
    return (offsets[:, None] + np.arange(0, width, unit)).ravel(), unit


def _rows_of(values: NDArray[Any], offsets: IndexArray, width: int) -> NDArray[Any]:
    """Rows of `width` elements at these offsets; a view when they lie equally far apart."""
    pitch = int(offsets[1] - offsets[0]) if len(offsets) > 1 else width
    if pitch < width or (offsets[1:] - offsets[:-1] != pitch).any():
        return values[offsets[:, None] + np.arange(width)]
    return np.ndarray((len(offsets), width), values.dtype, values, int(offsets[0]), (pitch, 1))


def read_global_rows(world: WorldLike, rows: IndexArray, width: int, actor: Actor | None) -> Bytes:
    """Bytes of rows of `width` bytes at global addresses `rows`, shaped (rows, width)."""
    allocation, offsets = _locate(world, rows, width, False)
    if allocation.valid is not None and not (valid := _rows_of(allocation.valid, offsets, width)).all():
        row, column = divmod(int(np.argmin(valid)), width)
        raise SimError(f"read of uninitialised global memory {allocation}+{int(offsets[row]) + column}")
    if actor is not None and world.race:
        where, size = _spans(offsets, width)
        world.race.read_global(allocation, where, size, actor)
    return np.array(_rows_of(allocation.data, offsets, width))


def write_global_rows(world: WorldLike, rows: IndexArray, values: Bytes, actor: Actor | None) -> None:
    """Store (rows, width) bytes at global addresses `rows`."""
    width = values.shape[1]
    allocation, offsets = _locate(world, rows, width, True)
    if actor is not None and world.race:
        where, size = _spans(offsets, width)
        world.race.write_global(allocation, where, size, actor)
    index = offsets[:, None] + np.arange(width)
    allocation.data[index] = values
    if allocation.valid is not None:
        allocation.valid[index] = True


def reduce_global_rows(world: WorldLike, rows: IndexArray, values: Bytes, reduce: Reduction, actor: Actor | None) -> None:
    """Combine (rows, width) bytes into global rows; every element is one relaxed atomic."""
    width = values.shape[1]
    allocation, offsets = _locate(world, rows, width, True)
    if actor is not None and world.race:
        where, size = _spans(offsets, width)
        shadow = world.race.global_shadow(allocation)
        world.race.strong(shadow, shadow.index(where, size), actor)
    index = offsets[:, None] + np.arange(width)
    if allocation.valid is not None and not allocation.valid[index].all():
        raise SimError(f"reduction into uninitialised global memory {allocation}")
    allocation.data[index] = reduce(np.ascontiguousarray(allocation.data[index]), np.ascontiguousarray(values))


def read_shared_chunks(cta: CtaLike, chunks: Chunks, what: str, actor: Actor | None) -> NDArray[np.uint8]:
    """The bytes of the chunks, shaped (chunks, 16). Uninitialised ones are an error."""
    shared = cta.shared
    shared.check(chunks.low, chunks.end)
    if (bad := shared.first_uninitialised(chunks.numbers, CHUNK)) is not None:
        raise SimError(f"{what} reads uninitialised shared memory: {shared.label} smem+{bad - SMEM_RESERVED}")
    if actor is not None and cta.world.race:
        cta.world.race.read_shared(cta, chunks, CHUNK, actor)
    return shared.rows(CHUNK, 1).take(chunks.numbers).view(np.uint8).reshape(-1, CHUNK)  # type: ignore[no-any-return]


def write_shared_chunks(cta: CtaLike, chunks: Chunks, values: Bytes, actor: Actor | None) -> None:
    """Store bytes, in this order, as the chunks."""
    shared = cta.shared
    shared.check(chunks.low, chunks.end)
    if actor is not None and cta.world.race:
        cta.world.race.write_shared(cta, chunks, CHUNK, actor)
    shared.rows(CHUNK, 1)[chunks.numbers] = np.ascontiguousarray(values).reshape(-1).view(B128)
    shared.mark(chunks.numbers, CHUNK)


class Reduction:
    """`old op new` on raw bytes for a reduction such as ``add`` of ``bf16``.

    Raises:
        SimError: an operation or type that is not modelled.
    """

    def __init__(self, operation: str, element: str) -> None:
        if operation not in _OPERATIONS:
            raise SimError(f"bulk reduction .{operation} is not modelled ({', '.join(_OPERATIONS)} are)")
        if element != "bf16" and element not in _TYPES:
            raise SimError(f"bulk reduction of .{element} is not modelled (bf16, {', '.join(_TYPES)} are)")
        self.operation, self.element = _OPERATIONS[operation], element

    def __call__(self, old: Bytes, new: Bytes) -> Bytes:
        if self.element == "bf16":
            total = self.operation(bf16_to_f32(old.view(np.uint16)), bf16_to_f32(new.view(np.uint16)))
            return f32_to_bf16(total).view(np.uint8)
        dtype = _TYPES[self.element]
        return self.operation(old.view(dtype), new.view(dtype)).astype(dtype).view(np.uint8)
