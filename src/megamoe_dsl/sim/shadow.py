"""Concurrent reads of a shadow memory: locations that several agents have read since the last write, and who.

Per page of locations there is a row of access records (see `shadow`) for every agent that has read there beside another.

Reads that are ordered one after the other overwrite each other; `Readers` has those that are concurrent. This is FastTrack (Flanagan and
Freund, 2009), vectorized.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, CODE_MASK, QUICK, Records, unordered
from .chunks import CHUNK, Chunks
from .lanes import uniform

PAGE_SHIFT = 10
PAGE = 1 << PAGE_SHIFT  # Locations of one page.


class Readers:
    """The concurrent readers of `size` locations; `some` says which locations have any."""

    def __init__(self, size: int) -> None:
        self.some: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._pages: defaultdict[int, defaultdict[int, Records]] = defaultdict(lambda: defaultdict(lambda: np.zeros(PAGE, np.int64)))

    def grow(self, size: int) -> None:
        self.some = np.concatenate([self.some, np.zeros(size - len(self.some), np.bool_)])

    def add(self, index: NDArray[np.int64], records: Records) -> None:
        """Concurrent reads of one agent. Its clock only grows, so its new record is the one that matters."""
        agent = int(records[0]) & AGENT_MASK
        for number in QUICK.pages(index, PAGE_SHIFT):
            QUICK.keep(self.some, self._pages[number][agent], number << PAGE_SHIFT, index, records)

    def unknown(self, index: NDArray[np.int64] | slice, known: NDArray[np.int32]) -> list[tuple[NDArray[np.int64], Records]]:
        """(positions in `index`, records) of readers that a clock row does not cover. Forgets all readers there, as a write follows."""
        some = self.some[index]
        if b"\1" not in some.tobytes():
            return []
        chosen = np.flatnonzero(some)
        index = index.start + chosen if isinstance(index, slice) else index.take(chosen)
        self.some[index] = False
        out = []
        for page, here, places in _by_page(index):
            found = [records.take(places) for records in self._pages[page].values()]
            out += [(chosen[here], records) for records in found if unordered(records, known) is not None]
            if b"\1" not in self.some[page << PAGE_SHIFT : page + 1 << PAGE_SHIFT].tobytes():
                del self._pages[page]
        return out

    def copy(self, old: NDArray[np.int64], new: slice) -> None:
        """Copies the readers of locations `old`, inside one page, to locations `new` of another page."""
        self.some[new] = self.some[old]
        place = new.start & PAGE - 1
        for agent, records in list(self._pages.get(int(old[0]) >> PAGE_SHIFT, {}).items()):
            if (kept := records[old & PAGE - 1]).any():
                self._pages[new.start >> PAGE_SHIFT][agent][place : place + len(old)] = kept


def _by_page(index: NDArray[np.int64]) -> list[tuple[int, NDArray[np.bool_] | slice, NDArray[np.int64]]]:
    low, high = int(index.min()) >> PAGE_SHIFT, int(index.max()) >> PAGE_SHIFT
    if low == high:
        return [(low, slice(None), index - (low << PAGE_SHIFT))]
    pages = index >> PAGE_SHIFT
    each = [(page, pages == page) for page in np.unique(pages).tolist()]
    return [(page, here, index[here] - (page << PAGE_SHIFT)) for page, here in each]


TENSOR, GLOBAL, SHARED = 0, 1, 2  # Spaces: rows of a clock that say what the async proxy knows of them, but for tensor memory.
BYTES_SHIFT = 10
BYTES = 1 << BYTES_SHIFT  # Bytes of a page of memory, all of whose records are equally fine.
_REMEMBERED = 1024  # indices

Index = NDArray[np.int64] | slice
Places = NDArray[np.int64] | slice | Chunks


class Shadow:
    """Access records of a byte range, one per `grain` bytes: a power of two. A page gets finer records on the first access that needs them.
    `name` and `origin` say where a location is; `place` is the kind of memory, by which findings are grouped."""

    def __init__(self, size: int, grain: int, place: str, name: str, origin: int, space: int) -> None:
        self.place, self.name, self.origin, self.space = place, name, origin, space
        self._shift = grain.bit_length() - 1
        pages = -(-size >> BYTES_SHIFT)
        self._per_page = BYTES >> self._shift
        self._used = pages * self._per_page
        self._first = np.arange(0, self._used, self._per_page)  # of every page, its first record
        self._shifts = np.full(pages, self._shift, np.uint8)  # of every page, log2 of the bytes of a record
        self._refined: dict[int, int] = {}  # first record: page
        self._indices: dict[object, Index] = {}  # those of accesses to pages as they are now
        self.write: Records = np.zeros(self._used, np.int64)
        self.read: Records = np.zeros(self._used, np.int64)
        self.readers: Readers | None = None
        self.has_strong: NDArray[np.bool_] | None = None
        self.strong: dict[int, dict[tuple[int, bool], int]] = {}  # location: (agent and lanes, writes): record

    def where(self, index: int) -> str:
        byte = index << self._shift
        if first := max((first for first in self._refined if first <= index), default=0):
            page = self._refined[first]
            byte = (page << BYTES_SHIFT) + (index - first << int(self._shifts[page]))
        return f"{self.name}+{byte - self.origin}"

    # ---- from bytes to records

    def index(self, start: Places, size: int) -> Index:
        """Record indices of the accesses [start, start + size), of a byte slice, or of chunks (whose size is theirs). Every access has as
        many records as every other, one after the other. Kernels go round in rings: most are looked up again."""
        if isinstance(start, np.ndarray):
            if (located := QUICK.locate(start, size, self._first, self._shifts, BYTES_SHIFT)) is not None:
                return located
            key: object = start.tobytes(), size
        else:
            key = (start.start, start.stop) if isinstance(start, slice) else start
        if (index := self._indices.get(key)) is None:
            if len(self._indices) >= _REMEMBERED:
                self._indices.clear()
            index = self._find(start, size)
            self._indices[key] = index
        return index

    def _find(self, start: Places, size: int) -> Index:
        if isinstance(start, slice):
            return self._slice(start.start, start.stop)
        if not isinstance(start, Chunks):
            return self._records(start, size)
        return self._slice(start.low, start.end) if start.dense else self._records(start.starts, CHUNK)

    def _slice(self, low: int, end: int) -> Index:
        first, last = low >> BYTES_SHIFT, end - 1 >> BYTES_SHIFT
        unit = low | end | 1 << self._shift
        shift = self._settle(slice(first, last + 1), unit & -unit)
        if first == last or shift == self._shift:
            base = int(self._first[first]) - (first << BYTES_SHIFT - shift)
            return slice(base + (low >> shift), base + (end >> shift))
        return self._records(np.arange(low, end, 1 << shift), 1 << shift)

    def _records(self, start: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        pages = start >> BYTES_SHIFT
        if uniform(pages):
            page = int(pages[0])
            shift = self._settle(slice(page, page + 1), size)
            first = (start >> shift) + (int(self._first[page]) - (page << BYTES_SHIFT - shift))
        else:
            shift = self._settle(pages, size)
            first = self._first[pages] + ((start & BYTES - 1) >> shift)
        if size >> shift == 1:
            return first
        return (first[:, None] + np.arange(size >> shift)).ravel()

    def _settle(self, pages: NDArray[np.int64] | slice, size: int) -> int:
        """Give these pages one grain, which is not larger than `size` bytes; its log2."""
        shifts = self._shifts[pages].tobytes()
        shift = min(min(shifts), size.bit_length() - 1)
        if max(shifts) > shift:
            touched = np.arange(pages.start, pages.stop) if isinstance(pages, slice) else np.unique(pages)
            for page in touched[self._shifts[touched] > shift].tolist():
                self._refine(page, shift)
        return shift

    def _refine(self, page: int, shift: int) -> None:
        self._indices.clear()
        count, before = BYTES >> shift, int(self._shifts[page])
        old = int(self._first[page]) + (np.arange(count) << shift >> before)
        first = self._used = -(-self._used // count) * count  # aligned, so that it lies in one page of `readers`
        self._used += count
        if self._used > len(self.write):
            self._grow()
        self._refined[first] = page
        self._first[page], self._shifts[page] = first, shift
        new = slice(first, first + count)
        self.write[new], self.read[new] = self.write[old], self.read[old]
        if self.has_strong is not None and self.has_strong[old].any():
            self.has_strong[new] = self.has_strong[old]
            for k in np.flatnonzero(self.has_strong[new]).tolist():
                self.strong[first + k] = self.strong[int(old[k])].copy()
        if self.readers is not None:
            self.readers.copy(old, new)

    def _grow(self) -> None:
        """More room. Untouched pages of a large buffer stay untouched, hence no plain copy."""
        room = self._used + max(len(self.write) // 4, 16 * PAGE)
        for name in ("write", "read"):
            wide, used = np.zeros(room, np.int64), np.flatnonzero(records := getattr(self, name))
            wide[used] = records[used]
            setattr(self, name, wide)
        if self.has_strong is not None:
            self.has_strong = np.concatenate([self.has_strong, np.zeros(room - len(self.has_strong), np.bool_)])
        if self.readers is not None:
            self.readers.grow(room)

    # ---- accesses

    def concurrent(self) -> Readers:
        """The store of reads that are concurrent with the recorded ones; made at first use."""
        if self.readers is None:
            self.readers = Readers(len(self.read))
        return self.readers

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
