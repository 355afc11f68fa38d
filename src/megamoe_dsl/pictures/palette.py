"""One colour per kind of thing, the same in the terminal and in SVG: light fills that carry black text."""

from __future__ import annotations

COLOURS = {
    "control": "#c5cae9",
    "input": "#b3e5fc",
    "pool": "#c8e6c9",
    "scales": "#fff59d",
    "output": "#ffccbc",
    "weights": "#90caf9",
    "tokens": "#a5d6a7",
    "epilogue": "#ffab91",
    "combine": "#ce93d8",
    "barriers": "#b0bec5",
    "padding": "#eeeeee",
    "free": "#fafafa",
    "linear1": "#80cbc4",
    "linear2": "#ffcc80",
}
CYCLE = ("#90caf9", "#a5d6a7", "#fff59d", "#ffab91", "#ce93d8", "#80deea", "#bcaaa4", "#ffcc80")


def colour(kind: str) -> str:
    """Colour of a kind; "0", "1", ... give the colours of a cycle."""
    return CYCLE[int(kind) % len(CYCLE)] if kind.isdigit() else COLOURS[kind]
