"""Shadow memory of the race detector: per location, who wrote last and who has read since.

An access is one packed int64: clock in bits 39-62, lanes in 33-38 (see `lane_codes`), PTX line in 15-32, async-proxy flag in bit 14,
agent in 0-13. Reads that are ordered one after the other overwrite each other; concurrent readers go to a sparse overflow (per page and
agent). This is FastTrack (Flanagan and Freund, 2009), vectorised.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .chunks import Chunks
from .lane_codes import ALIKE, CODE_MASK, CODE_SHIFT

AGENT_MASK = 0x3FFF
ASYNC_BIT = 0x4000
LINE_SHIFT = 15
LINE_MASK = 0x3FFFF
CLOCK_SHIFT = 39
PAGE_SHIFT = 12
PAGE = 1 << PAGE_SHIFT

Records = NDArray[np.int64]
Index = NDArray[np.int64] | slice
Places = NDArray[np.int64] | slice | Chunks


def pack(agent: int, clock: int, line: int, asynchronous: bool) -> int:
    """One access record, of no lane in particular."""
    return clock << CLOCK_SHIFT | (line & LINE_MASK) << LINE_SHIFT | (ASYNC_BIT if asynchronous else 0) | agent


def unordered(records: Records, row: NDArray[np.int32]) -> NDArray[np.bool_] | None:
    """Which accesses a clock with these entries does not know; None when it knows all.

    What one instruction touches was mostly touched by one instruction before, so that one comparison often does for all.
    """
    raw = records.tobytes()
    if raw == raw[:8] * len(records):
        first = int.from_bytes(raw[:8], "little")
        if first >> CLOCK_SHIFT <= row[first & AGENT_MASK]:
            return None
    bad: NDArray[np.bool_] = (records >> CLOCK_SHIFT) > row[records & AGENT_MASK]
    return bad if b"\x01" in bad.tobytes() else None


def _spread(records: Records, factor: int) -> Records:
    """Each record `factor` times. Untouched pages of a large buffer stay untouched, hence not `repeat`."""
    out = np.zeros(len(records) * factor, np.int64)
    used = np.flatnonzero(records)
    rows = out.reshape(-1, factor)
    rows[used] = records[used, None]
    return out


class Shadow:
    """Access records of a byte range, one per `grain` bytes. The grain gets finer on the first access that needs it.

    `name` and `origin` say where a location is; `place` is the kind of memory, by which findings are grouped.
    """

    def __init__(self, size: int, grain: int, place: str, name: str, origin: int, space: int) -> None:
        self.grain, self.place, self.name, self.origin, self.space = grain, place, name, origin, space
        n = -(-size // grain)
        self.write: Records = np.zeros(n, np.int64)
        self.read: Records = np.zeros(n, np.int64)
        self.shared_read: NDArray[np.bool_] | None = None
        self.overflow: dict[int, dict[int, Records]] = {}
        self.has_strong: NDArray[np.bool_] | None = None
        self.strong: dict[int, dict[tuple[int, bool], int]] = {}  # location: (agent and lanes, writes): record

    def where(self, index: int) -> str:
        """A location for people."""
        return f"{self.name}+{index * self.grain - self.origin}"

    def index(self, start: Places, size: int) -> Index:
        """Record indices of the accesses [start, start + size), of a byte slice, or of chunks (whose size is theirs)."""
        if isinstance(start, Chunks):
            return start.records(self.grain)
        if isinstance(start, slice):
            while start.start % self.grain or start.stop % self.grain:
                self._refine(self.grain // 2)
            return slice(start.start // self.grain, start.stop // self.grain)
        if size < self.grain:
            self._refine(size)
        if self.grain == size:
            return start // size if size > 1 else start
        steps = np.arange(size // self.grain)
        return (start[:, None] // self.grain + steps).ravel()

    def _refine(self, grain: int) -> None:
        factor = self.grain // grain
        self.grain = grain
        self.write, self.read = _spread(self.write, factor), _spread(self.read, factor)
        if self.shared_read is not None:
            self.shared_read = self.shared_read.repeat(factor)
        if self.has_strong is not None:
            self.has_strong = self.has_strong.repeat(factor)
        self.strong = {at * factor + k: records.copy() for at, records in self.strong.items() for k in range(factor)}
        old, self.overflow = self.overflow, {}
        for page, readers in old.items():
            for agent, records in readers.items():
                wide = records.repeat(factor).reshape(factor, PAGE)
                for k in range(factor):
                    self.overflow.setdefault(page * factor + k, {})[agent] = wide[k].copy()

    def add_reader(self, index: NDArray[np.int64], records: Records) -> None:
        """Reads that are concurrent with the recorded ones: keep both."""
        if self.shared_read is None:
            self.shared_read = np.zeros(len(self.read), np.bool_)
        first = ~self.shared_read[index]
        self._keep_all(index, self.read[index], first)
        self._keep_all(index, records, first)
        self.shared_read[index] = True

    def _keep_all(self, index: NDArray[np.int64], records: Records, first: NDArray[np.bool_]) -> None:
        agents = records & AGENT_MASK
        if (agents == agents[0]).all():
            self._keep(index, records, int(agents[0]), first)
            return
        for agent in np.unique(agents).tolist():
            mine = agents == agent
            self._keep(index[mine], records[mine], agent, first[mine])

    def _keep(self, index: NDArray[np.int64], records: Records, agent: int, first: NDArray[np.bool_]) -> None:
        low, high = int(index.min()) >> PAGE_SHIFT, int(index.max()) >> PAGE_SHIFT
        pages = index >> PAGE_SHIFT if low != high else None
        for page in range(low, high + 1):
            here, values, alone = index, records, first
            if pages is not None:
                mine = pages == page
                if not mine.any():
                    continue
                here, values, alone = index[mine], records[mine], first[mine]
            readers = self.overflow.setdefault(page, {})
            if agent not in readers:
                readers[agent] = np.zeros(PAGE, np.int64)
            # Clocks of one agent only grow, so the new record is the one that matters; of two lanes both do, and it stands for all.
            here = here & (PAGE - 1)
            before = readers[agent][here]
            several = (before != 0) & ((before ^ values) & CODE_MASK != 0) & ~alone
            readers[agent][here] = np.where(several, values & ~CODE_MASK | ALIKE << CODE_SHIFT, values)

    def add_strong(self, index: NDArray[np.int64], records: Records | int, writes: bool) -> None:
        """A strong access: flags and counters have many at a time, and only weak accesses conflict with them."""
        if self.has_strong is None:
            self.has_strong = np.zeros(len(self.read), np.bool_)
        self.has_strong[index] = True
        every = [records] * len(index) if isinstance(records, int) else records.tolist()
        for at, record in zip(index.tolist(), every, strict=True):
            self.strong.setdefault(at, {})[record & (AGENT_MASK | CODE_MASK), writes] = record

    def strong_at(self, index: Index, before_write: bool) -> list[tuple[int, int, bool]]:
        """(location, record, True) of the strong writes, and before a weak write also, with False, of the strong reads, which it ends."""
        if self.has_strong is None:
            return []
        here = self.has_strong[index]
        if b"\x01" not in here.tobytes():
            return []
        whole = np.arange(index.start, index.stop) if isinstance(index, slice) else index
        out = []
        for at in dict.fromkeys(whole[here].tolist()):  # several lanes may access one location
            out += [(at, record, writes) for (_, writes), record in self.strong[at].items() if writes or before_write]
            if before_write:
                del self.strong[at]
                self.has_strong[at] = False
        return out

    def readers(self, index: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Records]]:
        """(places in `index`, records) of the concurrent readers of `index`; forgets them, for a write follows."""
        if self.shared_read is None:
            return []
        chosen = np.flatnonzero(self.shared_read[index])
        if not len(chosen):
            return []
        index = index[chosen]
        self.shared_read[index] = False
        out, pages = [], index >> PAGE_SHIFT
        for page in np.unique(pages):
            here = pages == page
            for records in self.overflow.get(int(page), {}).values():
                out.append((chosen[here], records[index[here] & (PAGE - 1)]))
        return out
