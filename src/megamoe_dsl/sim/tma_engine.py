"""What bulk copies of every kind share: race-detector actors, strided global access and chunked shared access.

Loads are agents per mbarrier. Stores are two agents per warp, one that reads the source in shared memory and one that writes the
destination, because `wait_group.read` orders only the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .accessor import Actor
from .clock import Clock
from .errors import SimError
from .formats import bf16_to_f32, f32_to_bf16
from .interfaces import Cta, Warp, World
from .mbarrier import Mbarrier, finish_async_store
from .memory import SMEM_RESERVED, Allocation, Bytes
from .race import Race
from .swizzle import IndexArray

CHUNK = 16
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

    world: World
    line: int
    clock: Clock | None

    @classmethod
    def of(cls, w: Warp) -> Issue:
        """Snapshot at issue."""
        return cls(w.world, w.line, w.world.race.snapshot(w) if w.world.race else None)

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
    def of(cls, w: Warp) -> StoreActors | None:
        """Snapshot at issue; None when the detector is off."""
        race = w.world.race
        if race is None:
            return None
        agents = w.state.get("bulk store agents")
        if agents is None:
            agents = w.state["bulk store agents"] = tuple(race.agent(f"{w} bulk store {side}", w.cta) for side in ("source", "destination"))
        count = w.state["bulk stores"] = w.state.get("bulk stores", 0) + 1
        clock = race.snapshot(w)
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


def _locate(world: World, rows: IndexArray, width: int, write: bool) -> tuple[Allocation, IndexArray]:
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


def read_global_rows(world: World, rows: IndexArray, width: int, actor: Actor | None) -> Bytes:
    """Bytes of rows of `width` bytes at global addresses `rows`, shaped (rows, width)."""
    allocation, offsets = _locate(world, rows, width, False)
    index = offsets[:, None] + np.arange(width)
    if allocation.valid is not None and not allocation.valid[index].all():
        bad = int(index.reshape(-1)[int(np.argmin(allocation.valid[index].reshape(-1)))])
        raise SimError(f"read of uninitialised global memory {allocation}+{bad}")
    if actor is not None and world.race:
        where, size = _spans(offsets, width)
        world.race.read_global(allocation, where, size, actor)
    return allocation.data[index]


def write_global_rows(world: World, rows: IndexArray, values: Bytes, actor: Actor | None) -> None:
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


def reduce_global_rows(world: World, rows: IndexArray, values: Bytes, reduce: Reduction, actor: Actor | None) -> None:
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


def read_shared_chunks(cta: Cta, starts: IndexArray, what: str, actor: Actor | None) -> NDArray[np.uint8]:
    """The 16-byte chunks at byte offsets `starts`, shaped (chunks, 16). Uninitialised bytes are an error."""
    shared = cta.shared
    shared.check(int(starts.min()), int(starts.max()) + CHUNK)
    index = starts // CHUNK
    if (bad := shared.first_uninitialised(index, CHUNK)) is not None:
        raise SimError(f"{what} reads uninitialised shared memory: {shared.label} smem+{bad - SMEM_RESERVED}")
    if actor is not None and cta.world.race:
        cta.world.race.read_shared(cta, starts, CHUNK, actor)
    return shared.rows(1, CHUNK)[index]  # type: ignore[no-any-return]


def write_shared_chunks(cta: Cta, starts: IndexArray, values: Bytes, actor: Actor | None) -> None:
    """Store bytes as 16-byte chunks at byte offsets `starts`."""
    shared = cta.shared
    shared.check(int(starts.min()), int(starts.max()) + CHUNK)
    if actor is not None and cta.world.race:
        cta.world.race.write_shared(cta, starts, CHUNK, actor)
    index = starts // CHUNK
    shared.rows(1, CHUNK)[index] = values.reshape(-1, CHUNK)
    shared.mark(index, CHUNK)


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
