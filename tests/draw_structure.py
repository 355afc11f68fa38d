"""Draws `MAY_IMPORT`: `python tests/draw_structure.py FILE.svg` draws folders as boxes and imports as arrows that point down.

An arrow that follows from others is left out: `bench` may import `blocks` because it may import `kernels`, which imports `blocks`.
Boxes lie in ranks, each above all that it imports. An arrow across several ranks has a bend in each, ordered like a box (Sugiyama,
Tagawa and Toda, Methods for Visual Understanding of Hierarchical System Structures, 1981).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

import drawsvg

from structure import MAY_IMPORT, PACKAGE

FILES = "files"
LABELS = {FILES: "problem, recipe, target, …"}
COMMAND = "cli"
WIDTH, MARGIN, RANK_HEIGHT, BOX_HEIGHT, BEND_WIDTH = 900, 16, 62, 26, 12
CHARACTER = 7.4
SWEEPS = 24
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
DARK = {"page": "fill: #0d1117", "box": "fill: #1f3b57", "ink": "fill: #f0f0f0", "arrow": "stroke: #8b949e"}


def node(name: str) -> str:
    """The box of a row of `MAY_IMPORT`; files at the top of the package that import only one another share one."""
    is_file = (PACKAGE / f"{name}.py").exists()
    return FILES if is_file and all((PACKAGE / f"{other}.py").exists() for other in MAY_IMPORT[name]) else name


@cache
def graph() -> dict[str, frozenset[str]]:
    """Boxes and the boxes that they import, without arrows that follow from others."""
    whole: dict[str, set[str]] = {COMMAND: set()}
    for name, others in MAY_IMPORT.items():
        whole.setdefault(node(name), set()).update({node(other) for other in others} - {node(name)})
        whole[COMMAND].add(node(name))

    def reach(name: str) -> set[str]:
        return whole[name].union(*map(reach, whole[name]))

    return {name: frozenset(others - set().union(*map(reach, others))) for name, others in whole.items()}


@cache
def rank(name: str) -> int:
    """The bottom row is 0."""
    return 1 + max(map(rank, graph()[name]), default=-1)


Place = tuple[str, str, int]
"""(importer, imported, rank) of a bend, (name, "", rank) of a box."""


def chain(name: str, other: str) -> list[Place]:
    """An arrow's places from its box down to the other."""
    bends = [(name, other, height) for height in range(rank(name) - 1, rank(other), -1)]
    return [(name, "", rank(name)), *bends, (other, "", rank(other))]


def width(place: Place) -> float:
    return BEND_WIDTH if place[1] else len(LABELS.get(place[0], place[0])) * CHARACTER + 34


def spread(row: list[Place]) -> dict[Place, float]:
    """Centers of a rank's places, which fill the page's width."""
    gap = (WIDTH - 2 * MARGIN - sum(map(width, row))) / len(row)
    centers, x = {}, MARGIN + gap / 2
    for place in row:
        centers[place] = x + width(place) / 2
        x += width(place) + gap
    return centers


def arrange(chains: Iterable[list[Place]]) -> dict[Place, float]:
    """The center of every place: each rank in the order of the mean of its neighbors, in sweeps up and down."""
    neighbors: dict[Place, set[Place]] = {(name, "", rank(name)): set() for name in graph()}
    for places in chains:
        for upper, lower in pairwise(places):
            neighbors.setdefault(upper, set()).add(lower)
            neighbors.setdefault(lower, set()).add(upper)
    rows = [sorted(place for place in neighbors if place[2] == height) for height in range(1 + max(map(rank, graph())))]
    centers = {place: x for row in rows for place, x in spread(row).items()}
    for sweep in range(SWEEPS):
        up = sweep % 2 == 0
        for height in range(len(rows)) if up else reversed(range(len(rows))):

            def mean(place: Place, below: bool = up) -> float:
                near = [centers[one] for one in neighbors[place] if (one[2] < place[2]) == below]
                return sum(near) / len(near) if near else centers[place]

            rows[height].sort(key=lambda place: (mean(place), place))
            centers.update(spread(rows[height]))
    return centers


def draw() -> str:
    """The picture as SVG."""
    chains = [chain(name, other) for name in sorted(graph()) for other in sorted(graph()[name])]
    centers = arrange(chains)
    top = max(map(rank, graph()))
    drawing = drawsvg.Drawing(WIDTH, 2 * MARGIN + top * RANK_HEIGHT + BOX_HEIGHT, id_prefix="id")
    drawing.append_css("@media (prefers-color-scheme: dark) { " + " ".join(f".{name} {{ {look}; }}" for name, look in DARK.items()) + " }")
    drawing.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="#ffffff", class_="page"))
    head = drawsvg.Marker(-6, -3, 0, 3, orient="auto", id="head")
    head.append(drawsvg.Lines(-6, -3, 0, 0, -6, 3, close=True, fill="#8b949e"))

    def middle(place: Place) -> float:
        return MARGIN + BOX_HEIGHT / 2 + (top - place[2]) * RANK_HEIGHT

    for places in chains:
        x, y = centers[places[0]], middle(places[0]) + BOX_HEIGHT / 2
        path = drawsvg.Path(stroke="#8b949e", stroke_width=1.2, fill="none", class_="arrow", marker_end=head).M(round(x, 1), round(y, 1))
        for place in places[1:]:
            x_next, y_next = centers[place], middle(place) - BOX_HEIGHT / 2
            half = (y + y_next) / 2
            path.C(*(round(at, 1) for at in (x, half, x_next, half, x_next, y_next)))
            x, y = x_next, y_next
            if place[1]:
                y += BOX_HEIGHT
                path.L(round(x, 1), round(y, 1))
        drawing.append(path)
    for place, x in centers.items():
        if not place[1]:
            left, y = round(x - width(place) / 2, 1), middle(place)
            box = drawsvg.Rectangle(left, y - BOX_HEIGHT / 2, round(width(place), 1), BOX_HEIGHT, rx=4, fill="#cfe3f7", class_="box")
            text = LABELS.get(place[0], f"{place[0]}/" if (PACKAGE / place[0]).is_dir() else place[0])
            drawing.append(box)
            drawing.append(drawsvg.Text(text, 12, round(x, 1), y + 4, text_anchor="middle", fill="#111111", class_="ink", font_family=FONT))
    return str(drawing.as_svg())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(), encoding="utf-8")
