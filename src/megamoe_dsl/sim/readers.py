"""Concurrent reads of a shadow memory: locations that several agents have read since the last write, and who.

Per page of locations there is a row of access records (see `shadow`) for every agent that has read there beside another.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, QUICK, Records, unordered

PAGE_SHIFT = 10
PAGE = 1 << PAGE_SHIFT
"""Locations of one page."""
_ROWS = 4  # agents that a page has room for at first


class _Page:
    """The records of one page, a row for each agent."""

    __slots__ = ("_rows", "records")

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self.records: Records = np.zeros((_ROWS, PAGE), np.int64)

    def of(self, agent: int) -> Records:
        """The row of an agent."""
        if (row := self._rows.get(agent)) is None:
            row = self._rows[agent] = len(self._rows)
            if row == len(self.records):
                self.records = np.concatenate([self.records, np.zeros_like(self.records)])
        return self.records[row]

    def rows(self) -> Iterator[tuple[int, Records]]:
        return zip(self._rows, self.records, strict=False)


class Readers:
    """The concurrent readers of `size` locations; `some` says which locations have any."""

    def __init__(self, size: int) -> None:
        self.some: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._pages: dict[int, _Page] = {}

    def grow(self, size: int) -> None:
        self.some = np.concatenate([self.some, np.zeros(size - len(self.some), np.bool_)])

    def add(self, index: NDArray[np.int64], records: Records) -> None:
        """Reads of one agent that are concurrent with others.

        Clocks of one agent only grow, so its new record is the one that matters; of several lanes all do, and it stands for them.
        """
        agent = int(records[0]) & AGENT_MASK
        for number in QUICK.pages(index, PAGE_SHIFT):
            if (page := self._pages.get(number)) is None:
                page = self._pages[number] = _Page()
            QUICK.keep(self.some, page.of(agent), number << PAGE_SHIFT, index, records)

    def unknown(self, index: NDArray[np.int64] | slice, known: NDArray[np.int32]) -> list[tuple[NDArray[np.int64], Records]]:
        """(places in `index`, records) of the readers of `index` that a clock with these entries does not know of all of; forgets all
        readers of `index`, for a write follows."""
        some = self.some[index]
        if b"\1" not in some.tobytes():
            return []
        chosen = np.flatnonzero(some)
        index = index.start + chosen if isinstance(index, slice) else index.take(chosen)
        self.some[index] = False
        out = []
        for page, here, places in _by_page(index):
            found = self._pages[page].records.take(places, 1)
            if unordered(found.ravel(), known) is not None:
                out += [(chosen[here], records) for records in found if unordered(records, known) is not None]
            if b"\1" not in self.some[page << PAGE_SHIFT : page + 1 << PAGE_SHIFT].tobytes():
                del self._pages[page]
        return out

    def copy(self, old: NDArray[np.int64], new: slice) -> None:
        """The locations `old` of one page are now also called `new`, of another."""
        self.some[new] = self.some[old]
        if (page := self._pages.get(int(old[0]) >> PAGE_SHIFT)) is not None:
            for agent, records in page.rows():
                if (kept := records[old & PAGE - 1]).any():
                    place = new.start & PAGE - 1
                    self._pages.setdefault(new.start >> PAGE_SHIFT, _Page()).of(agent)[place : place + len(old)] = kept


def _by_page(index: NDArray[np.int64]) -> list[tuple[int, NDArray[np.bool_] | slice, NDArray[np.int64]]]:
    """Locations by their pages: the page, which of them lie there, and where."""
    low, high = int(index.min()) >> PAGE_SHIFT, int(index.max()) >> PAGE_SHIFT
    if low == high:
        return [(low, slice(None), index - (low << PAGE_SHIFT))]
    pages = index >> PAGE_SHIFT
    each = [(page, pages == page) for page in np.unique(pages).tolist()]
    return [(page, here, index[here] - (page << PAGE_SHIFT)) for page, here in each]
