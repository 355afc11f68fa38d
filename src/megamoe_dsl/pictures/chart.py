"""Parts of a picture before it is drawn: bars on an axis, grids of cells, and the style of each kind.

A kind's name is the word that a legend shows. Color is never alone: kinds that share a bar chart differ in hatching (SVG) and in the
character that fills a bar (terminal), or are lanes with names.
"""

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
        return tuple(dict.fromkeys(bar.kind for lane in self.lanes for bar in lane.bars))


@dataclass(frozen=True)
class Cell:
    """A cell's text, and the kind that gives its color."""

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
    """Charts under a title, with a note on how to read them."""

    title: str
    note: str
    charts: tuple[BarChart | CellGrid, ...]


@dataclass(frozen=True)
class Paper:
    """Colors of everything but bars, and of empty bars, on light and on dark pages."""

    light: str
    dark: str


PAPER = {
    "page": Paper("#ffffff", "#0d1117"), "ink": Paper("#111111", "#f0f0f0"), "soft": Paper("#555555", "#b0b0b0"),
    "rule": Paper("#dddddd", "#3a3f46"), "line": Paper("#999999", "#8b949e"), "quiet": Paper("#f1f3f5", "#262c35"),
}  # fmt: skip
INK_ON_KIND = "#111111"


@dataclass(frozen=True)
class Style:
    """A light fill for black text, its `hatch` (of `svg.HATCHES`), and a terminal's `fill`. What is `quiet` is dark on dark pages."""

    color: str
    hatch: str = ""
    fill: str = "█"
    quiet: bool = False


QUIET = PAPER["quiet"].light
STYLES = {
    "this project": Style("#80cbc4"), "another project": Style("#c5cae9", "upright", "▙"), "dispatch": Style("#ce93d8", fill="▞"),
    "pull": Style("#c5e1a5", "falling", "▚"), "Linear1": Style("#80cbc4"), "Linear2": Style("#ffcc80", "rising", "▒"),
    "combine": Style("#9fa8da", "upright", "▓"), "wait": Style(QUIET, "dots", "·", quiet=True), "other": Style("#c5cae9", "upright", "▙"),
    "inputs": Style("#b3e5fc"), "token pool": Style("#c8e6c9"), "weights": Style("#90caf9"),
    "tokens": Style("#a5d6a7"), "scales": Style("#fff59d"), "accumulators": Style("#ffab91"), "results": Style("#ffccbc", "upright"),
    "barriers": Style("#b0bec5"), "control": Style("#c5cae9"), "padding": Style(QUIET, "rising", "░", quiet=True),
    "free": Style(QUIET, "dots", "·", quiet=True),
}  # fmt: skip
CYCLE = tuple(Style(c) for c in ("#90caf9", "#a5d6a7", "#fff59d", "#ffab91", "#ce93d8", "#80deea", "#bcaaa4", "#ffcc80"))


def style(kind: str) -> Style:
    """The style of a kind; "0", "1", ... give the styles of a cycle."""
    return CYCLE[int(kind) % len(CYCLE)] if kind.isdigit() else STYLES[kind]


ON_TERMINALS = {
    "#80cbc4": "#59908b", "#c5cae9": "#82859b", "#ce93d8": "#a676ae", "#c5e1a5": "#7a8c66", "#ffcc80": "#a2814f", "#9fa8da": "#7d84ad",
    "#90caf9": "#628bac", "#b3e5fc": "#6c8b9a", "#c8e6c9": "#798b79", "#a5d6a7": "#6d8f6f", "#fff59d": "#8e8855", "#ffab91": "#b47865",
    "#ffccbc": "#a07f75", "#b0bec5": "#7e888d", "#80deea": "#519098", "#bcaaa4": "#92847f", QUIET: "#858788",
}  # fmt: skip
"""Colors, darkened to a luminance of 0.24: 3.6 times the contrast of a light background, 5.8 times that of a dark one."""


def terminal_color(kind: str) -> str:
    return ON_TERMINALS[style(kind).color]
