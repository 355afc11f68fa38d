"""What a picture is made of, before anything is drawn: bars on an axis, and grids of cells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """[start, end) on the axis of its chart.  `share` from 0 to 1 is how much of its lane's height it fills."""

    start: float
    end: float
    kind: str
    label: str = ""
    share: float = 1.0


@dataclass(frozen=True)
class Lane:
    """A row of bars with a name and further columns of text; lanes of one `group` stand together under its name."""

    name: str
    bars: tuple[Bar, ...]
    details: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class BarChart:
    """Lanes over one axis from 0 to `extent`; `headings` name the lanes' details."""

    lanes: tuple[Lane, ...]
    extent: float
    unit: str
    headings: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its bars, in the order of their first appearance."""
        return tuple(dict.fromkeys(bar.kind for lane in self.lanes for bar in lane.bars))


@dataclass(frozen=True)
class Cell:
    """What a cell of a grid shows, and the kind that gives it its color."""

    text: str
    kind: str


@dataclass(frozen=True)
class CellGrid:
    """Cells under column headings, each row with a label."""

    headings: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """Charts under a title, with a sentence that says how to read them."""

    title: str
    note: str
    charts: tuple[BarChart | CellGrid, ...]
