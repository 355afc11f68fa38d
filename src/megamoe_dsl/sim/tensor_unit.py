"""Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits, its allocator, and the register fragments of tcgen05.ld and st.

Sources: PTX ISA, "Tensor Memory" and "Data Movement Shape"; fragments equal CUTLASS's copy traits.

Ordering (PTX ISA, "tcgen05 Memory Consistency Model"): tcgen05 operations of a warp are asynchronous to its other instructions. What the
warp learned through a barrier applies to them only after `tcgen05.fence::after_thread_sync`; what they did is published by its arrives only
after `tcgen05.fence::before_thread_sync`, which `tcgen05.commit` implies. So every warp has a second agent and a second clock for tensor
memory. With `Assumptions(tensor_fences=True)` every tcgen05 operation has both fences around it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .access_record import SEVERAL
from .chunks import IndexArray
from .clock import Actor, Clock, LaneAgents
from .cta import Cta, Warp, kept
from .errors import SimError
from .interfaces import Action, Origin
from .race import UNWATCHED
from .shadow import TENSOR, Shadow

LANES = 128
COLUMNS = 512


@lru_cache(maxsize=4096)
def granules(quarters: range | tuple[int, ...], column: int, count: int) -> IndexArray:
    """Race-detector granules of columns [column, column + count) in the given lane quarters: one granule per quarter and column."""
    return np.concatenate([quarter * COLUMNS + np.arange(column, column + count) for quarter in quarters])


_FRAGMENTS: dict[str, tuple[int, Callable[[IndexArray, IndexArray], tuple[IndexArray, IndexArray]]]] = {
    "32x32b": (1, lambda r, thread: (thread, r)),
    "16x64b": (1, lambda r, thread: (thread // 4 + 8 * (thread % 2), 2 * r + thread // 2 % 2)),
    "16x128b": (2, lambda r, thread: (thread // 4 + 8 * (r % 2), 4 * (r // 2) + thread % 4)),
    "16x256b": (4, lambda r, thread: (thread // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (thread % 4) + r % 2)),
}
"""Registers of `.x1`, and the lane and column of register r of a thread."""


@lru_cache(maxsize=256)
def fragment(shape: str, repeat: int) -> tuple[IndexArray, IndexArray, int]:
    """Lane and column of each register of a tcgen05.ld or st of `.x<repeat>`, shaped (registers, 32 threads), and columns touched."""
    if shape not in _FRAGMENTS:
        raise SimError(f"tcgen05.ld/st shape {shape} is not modeled ({', '.join(_FRAGMENTS)} are)")
    registers, places = _FRAGMENTS[shape]
    lanes, columns = np.broadcast_arrays(*places(np.arange(registers * repeat)[:, None], np.arange(32)[None, :]))
    return lanes, columns, int(columns.max()) + 1


QUARTERS = 4


class PipeIssue:
    """Clocks of a warp when it issues a pipe operation: `shared` for shared memory, `tensor` for tensor memory."""

    def __init__(self, w: Warp) -> None:
        self.line = w.line
        self.shared = w.order.snapshot()
        thread = tensor_thread(w)
        if w.world.assumptions.tensor_fences:
            thread.after_thread_sync()
        self.tensor = thread.clock.copy()


class TensorUnit:
    """Tensor memory and its pipe in one CTA. `shadow` numbers locations quarter * 512 + column, `working` counts unfinished mma and cp."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.words = np.zeros((LANES, COLUMNS), np.uint32)
        self.valid = np.zeros((LANES, COLUMNS), bool)  # False where nothing was written since the column was allocated
        self.allocated: dict[int, int] = {}  # first column: number of columns
        self.may_allocate = True  # False after `tcgen05.relinquish_alloc_permit`
        self._written: set[tuple[int, int, int, int]] = set()  # pieces known to be allocated and valid, until a column is freed
        self.pipe = cta.world.pipe()
        self.count = self.working = 0
        race = cta.world.race
        self.shadow = Shadow(QUARTERS * COLUMNS, 1, "tmem", f"{cta} tmem", 0, TENSOR)
        self.agent = race.agent(f"{cta} tensor pipe", cta)
        self.shared_clock, self.tensor_clock = race.clock(), race.clock()
        self._told: tuple[object, object] = None, None  # what was known when the last operation that has begun was issued
        cta.exit_checks["tensor memory"] = self._exit_check

    # ---- memory

    def allocate(self, columns: int) -> int | None:
        """First column of a new allocation, None while there is no room. Raises SimError for a size that the ISA does not allow."""
        if columns not in (32, 64, 128, 256, 512):
            raise SimError(f"tcgen05.alloc of {columns} columns: must be a power of two from 32 to 512")
        if not self.may_allocate:
            raise SimError("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
        for start in range(0, COLUMNS - columns + 1, 32):
            if all(start + columns <= first or start >= first + count for first, count in self.allocated.items()):
                self.allocated[start] = columns
                return start
        return None

    def free(self, address: int, columns: int) -> None:
        """Undo :meth:`allocate`; address and size must be those of one allocation."""
        start = address & 0xFFFF
        if self.allocated.get(start) != columns:
            held = ", ".join(f"{count} at column {first}" for first, count in self.allocated.items()) or "nothing"
            raise SimError(f"tcgen05.dealloc of {columns} columns at column {start}: allocated is {held}")
        del self.allocated[start]
        self.valid[:, start : start + columns] = False
        self._written.clear()

    def read(self, lanes: slice, column: int, count: int, what: str) -> NDArray[np.uint32] | None:
        """Columns [column, column + count) of some lanes, None when not all were written. Raises SimError outside an allocation."""
        if (piece := (lanes.start, lanes.stop, column, count)) not in self._written:
            self.check(column, count, what)
            if b"\x00" in self.valid[lanes, column : column + count].tobytes():
                return None
            self._written.add(piece)
        return self.words[lanes, column : column + count]

    def write(self, lanes: slice, column: int, values: NDArray[np.uint32], what: str) -> None:
        """Replace columns of some lanes. Raises SimError outside an allocation."""
        end = column + values.shape[1]
        if (piece := (lanes.start, lanes.stop, column, values.shape[1])) not in self._written:
            self.check(column, values.shape[1], what)
            self.valid[lanes, column:end] = True
            self._written.add(piece)
        self.words[lanes, column:end] = values

    def check(self, column: int, count: int, what: str) -> None:
        for first, size in self.allocated.items():
            if first <= column and column + count <= first + size:
                return
        held = ", ".join(f"[{first}, {first + size})" for first, size in self.allocated.items()) or "none"
        raise SimError(f"{what}: TMEM columns [{column}, {column + count}) are outside the allocation ({held})")

    # ---- pipe

    def work(self, action: Action, origin: Origin) -> None:
        self.working += 1

        def run() -> None:
            action()
            self.working -= 1

        self.cta.world.post(run, origin, self.pipe)

    def begin(self, issue: PipeIssue) -> tuple[Actor, Actor]:
        """The pipe starts an operation: actors for shared and for tensor memory."""
        if not issue.shared:
            return UNWATCHED, UNWATCHED
        self.count += 1
        clocks, known = (self.shared_clock, self.tensor_clock), (issue.shared, issue.tensor)
        for clock, now, before in zip(clocks, known, self._told, strict=True):
            if now.rows is not before:
                clock.join(now)
            clock.fit(self.cta.world.race.width)
            clock.set(self.agent, self.count)
        self._told = issue.shared.rows, issue.tensor.rows
        return Actor(self.agent, self.shared_clock, issue.line), Actor(self.agent, self.tensor_clock, issue.line)

    def committed(self, issue: PipeIssue) -> Clock:
        """The clock that `tcgen05.commit` releases: all earlier operations of the pipe, and what their issuers knew."""
        self.begin(issue)
        clock = self.shared_clock.copy()
        clock.join(self.tensor_clock)
        return clock

    def _exit_check(self, cta: Cta) -> None:
        if self.allocated:
            held = ", ".join(f"{count} columns at {first}" for first, count in self.allocated.items())
            raise SimError(f"{cta} exited without tcgen05.dealloc of {held}")
        for warp in cta.warps:
            thread = warp.state.get("tensor thread")
            if thread is not None and (thread.loads or thread.stores):
                text = f"{warp}: exit without tcgen05.wait for {len(thread.loads)} loads, {len(thread.stores)} stores"
                cta.world.warnings[text] += 1


class TensorThread:
    """The tcgen05 side of a warp: agent, number of completed accesses, what they may rely on, and loads and stores in flight."""

    def __init__(self, w: Warp) -> None:
        self.warp = w
        self.loads: list[Any] = []
        self.stores: list[Any] = []
        self.count = 0
        race = w.world.race
        self.lanes = LaneAgents(race, f"{w} tcgen05.ld/st", w.cta) if race else UNWATCHED
        self.clock = race.clock()

    def actor(self, line: int) -> Actor:
        """Accessor for one ld or st of the warp."""
        self.count += 1
        if self.warp.world.assumptions.tensor_fences:
            self.after_thread_sync()
            self.before_thread_sync()
        self.clock.fit(self.warp.world.race.width)
        self.clock.set(self.lanes.agent, self.count)
        return Actor(self.lanes.agent, self.clock, line, asynchronous=False, code=SEVERAL)

    def before_thread_sync(self) -> None:
        self.warp.order.has_done(self.lanes, self.count)
        self.warp.order.release_agent(self.lanes, self.count)

    def after_thread_sync(self) -> None:
        """Later tensor operations of the warp rely on all it has learned, from relaxed waits too."""
        order = self.warp.order
        put_off = (clock for (_, lanes), clock in order.pending.items() if lanes & order.lanes())
        for clock in (order.released(), *put_off):
            self.clock.join(clock)


def tensor_unit(cta: Cta) -> TensorUnit:
    return kept(cta, "tensor unit", TensorUnit)


def tensor_thread(w: Warp) -> TensorThread:
    return kept(w, "tensor thread", TensorThread)


def cta_group(w: Warp, parts: tuple[str, ...]) -> list[Cta]:
    """The CTAs that an operation works on: its own, or the pair of `cta_group::2` (even CTA first)."""
    if "cta_group::2" not in parts:
        return [w.cta]
    ctas, even = w.cta.cluster.ctas, w.cta.cluster_rank & ~1
    if even + 1 >= len(ctas):
        raise SimError(f"cta_group::2 in a cluster of {len(ctas)} CTAs: there is no pair")
    return [ctas[even], ctas[even + 1]]
