"""Charts and grids that are written here, in a terminal character by character and as SVG: what is where, and what fits."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from megamoe_dsl.pictures import Bar, BarChart, Lane, Picture, render, to_svg
from megamoe_dsl.pictures.chart import STYLES, Cell, CellGrid
from megamoe_dsl.pictures.svg import tick_step

LANES = (
    Lane("one", (Bar(0, 50, "weights", "w0"), Bar(50, 100, "tokens", "wide label.")), ("1", "22"), "first"),
    Lane("two", (Bar(25, 75, "free"), Bar(75, 76, "free"), Bar(90, 100, "free", "ab")), ("333", "4"), "first"),
    Lane("three", (), ("5", "6"), "second group"),
    Lane(
        "four", (Bar(0, 20, "pull", share=0.0), Bar(20, 60, "pull", share=0.5), Bar(60, 100, "pull", share=0.99)), ("", ""), "second group"
    ),
)
CHART = BarChart(LANES, 100, "bytes", ("a", "heading"))
GRID = CellGrid(
    ("c0", "a heading"), ("row 1", "r2"), ((Cell("1.0", "0"), Cell("x", "1")), (Cell("a long cell", "2"), Cell("22", "3"))), "[b]"
)


def printed(*charts: BarChart | CellGrid, width: int = 60) -> list[str]:
    """Lines after the title and the note."""
    console = Console(file=StringIO(), width=width)
    console.print(render(Picture("Title [b]", "Note [b]", charts), width))
    title, note, *lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert (title, note) == ("Title [b]", "Note [b]")
    return lines


# --- terminal
def test_a_chart_has_a_legend_a_heading_and_lanes_in_groups() -> None:
    """29 characters of axis: a label stands in the middle of a bar that is longer, and the last character of a whole bar is narrower."""
    assert printed(CHART) == [
        "██\xa0weights  ██\xa0tokens  ··\xa0free  ▚▚\xa0pull",
        "",
        "                 a  heading  0                   100 bytes",
        " ──────────────────────────────────────────────────────────",
        " first",
        "   one           1       22  ██████w0█████▊██wide label.█▊",
        "   two         333        4         ················   ab·",
        " second group",
        "   three         5        6",
        "   four                      ▁▁▁▁▁▁▅▅▅▅▅▅▅▅▅▅▅▇▇▇▇▇▇▇▇▇▇▇▇",
        "",
    ]


@pytest.mark.parametrize(
    ("bars", "row"),
    [
        ([Bar(0, 2, "weights", "ab")], "█▊"),  # no room beside the label
        ([Bar(0, 3, "weights", "ab")], "ab▊"),
        ([Bar(0, 1, "weights"), Bar(1, 2, "weights")], "██"),
        ([Bar(0, 48, "pull"), Bar(95.9, 96, "combine")], "▚" * 48 + " " * 47 + "▓"),
        ([Bar(10, 10, "weights"), Bar(96, 96, "combine")], " " * 10 + "█" + " " * 84 + "▓"),  # at least a character
    ],
)
def test_bars_are_where_they_are_on_the_axis(bars: list[Bar], row: str) -> None:
    """One of 96 characters."""
    assert printed(BarChart((Lane("x", tuple(bars)),), 96, "us"), width=200)[4] == f" x  {row}"


@pytest.mark.parametrize(
    ("extent", "unit", "axis"),
    [
        (7, "us", "0           7 us"),
        (999_999_999, "us", "0 999,999,999 us"),
        (9_999_999, "bytes", " 9,999,999 bytes"),
        (10**7, "bytes", "10,000,000 bytes"),
    ],
)
def test_an_axis_ends_with_its_extent(extent: float, unit: str, axis: str) -> None:
    """And begins with 0 where there is room for both, here of 16 characters."""
    assert printed(BarChart((Lane("x", (Bar(0, extent, "free"),)),), extent, unit), width=22)[2] == f"    {axis}"


@pytest.mark.parametrize(("width", "axis"), [(200, 96), (112, 96), (111, 95), (60, 44), (32, 16)])
def test_an_axis_is_as_long_as_the_width_allows(width: int, axis: int) -> None:
    """4 characters of a name, 5 of a detail, two after each of them and after the axis, and one before all: 16."""
    lanes = (Lane("name", (Bar(0, 1, "free"),), ("12345",)),)
    assert printed(BarChart(lanes, 1, "us", ("d",)), width=width)[4] == " name  12345  " + "·" * axis


def test_a_grid_has_headings_labels_and_cells_in_the_middle() -> None:
    assert printed(GRID) == [
        " " * 12 + "c0" + " " * 6 + "a heading",
        "row 1" + " " * 6 + "1.0" + " " * 10 + "x",
        "   r2  a long cell" + " " * 6 + "22",
        "[b]",
    ]
    assert printed(CellGrid(("c",), ("r",), ((Cell("1", "0"),),))) == ["   c", "r  1"]


# --- SVG
def svg(*charts: BarChart | CellGrid, title: str = "Title") -> tuple[float, float, list[ElementTree.Element]]:
    """Width, height, and what is drawn, in order."""
    root = ElementTree.fromstring(to_svg(Picture(title, "Note", charts)))
    content = next(one for one in root if one.tag.endswith("}g"))
    return float(root.get("width", "")), float(root.get("height", "")), list(content.iter())


def numbers(one: ElementTree.Element, *names: str) -> list[float]:
    return [float(one.get(name, "nan")) for name in names]


def lines(elements: Sequence[ElementTree.Element]) -> list[list[float]]:
    """x1, y1, x2 and y2 of each."""
    return [list(map(float, re.findall(r"[\d.]+", one.get("d", "")))) for one in of(elements, "path")]


def of(elements: Sequence[ElementTree.Element], tag: str) -> list[ElementTree.Element]:
    return [one for one in elements if one.tag.endswith(f"}}{tag}")]


@pytest.mark.parametrize(
    ("title", "width"), [("Title", 900), ("x" * 200, round(16 + 200 * 7.25 * 15 / 12 + 16)), ("x" * 95, 900), ("x" * 96, 902)]
)
def test_a_page_is_as_wide_as_its_text(title: str, width: float) -> None:
    """A character is 7.25 pixels wide at a size of 12; a title has 15, and a margin on both sides."""
    assert svg(CHART, title=title)[0] == width


@pytest.mark.parametrize(("name", "page"), [("lane", 900), ("n" * 80, round(16 + 80 * 7.25 + 14 + 4 * 7.25 + 14 + 360 + 16))])
def test_bars_are_to_scale_and_lanes_as_wide_as_the_page(name: str, page: int) -> None:
    """Of the longest name and detail; an axis has 360 pixels or more, and no bar is narrower than a pixel."""
    bars = (Bar(0, 40, "weights"), Bar(50, 50.001, "tokens"), Bar(70, 90, "tokens", share=0.25))
    width, _, drawn = svg(BarChart((Lane("x", (), ("1",)), Lane(name, bars, ("1234",)), Lane("y", (), ("2",))), 100, "us", ("d",)))
    ((left, right),) = {(x1, x2) for x1, y1, x2, y2 in lines(drawn) if y1 == y2}
    assert width == page and right == pytest.approx(width - 16, abs=0.6) and right - left >= 360 - 0.1
    assert left == pytest.approx(16 + len(name) * 7.25 + 14 + 4 * 7.25 + 14, abs=0.1)
    boxes = [numbers(one, "x", "width", "height") for one in of(drawn, "rect") if one.get("height") != "14"]
    scale = (right - left) / 100
    assert boxes == [
        pytest.approx([left, 40 * scale, 18], abs=0.1),
        pytest.approx([left + 50 * scale, 1, 18], abs=0.1),
        *(pytest.approx([left + 70 * scale, 20 * scale, height], abs=0.1) for height in (18, 4.5)),
    ]


def test_nothing_is_outside_of_the_page() -> None:
    width, height, drawn = svg(CHART, GRID, title="x" * 120)
    for one in of(drawn, "text"):
        x, y, size = numbers(one, "x", "y", "font-size")
        room = len(one.text or "") * 7.25 * size / 12
        left = x - {"start": 0.0, "middle": room / 2, "end": room}[one.get("text-anchor", "start")]
        assert left >= 0 and left + room <= width and 0 < y < height
    for one in of(drawn, "rect"):
        x, y, across, down = numbers(one, "x", "y", "width", "height")
        assert x >= 0 and x + across <= width and y >= 0 and y + down <= height


def test_a_legend_goes_on_in_the_next_line() -> None:
    """Its boxes have 14 pixels, its names stand beside them, and nothing is on top of another."""
    bars = tuple(Bar(place, place + 1, kind) for place, kind in enumerate(STYLES))
    width, _, drawn = svg(BarChart((Lane("", bars),), len(bars), "us"))
    boxes = [one for one in of(drawn, "rect") if one.get("width") == one.get("height") == "14"]
    places = [numbers(one, "x", "y") for one in boxes]
    names = {tuple(numbers(one, "x", "y")): one.text or "" for one in of(drawn, "text")}
    shown = [names[round(x + 20, 1), round(y + 11, 1)] for x, y in places]
    assert shown == list(STYLES)
    rows = sorted({y for _, y in places})
    assert len(rows) == 3 and all(low + 14 < high for low, high in pairwise(rows))
    for (name, (x, y)), (_, (after, line)) in pairwise(zip(shown, places, strict=True)):
        end = x + 20 + len(name) * 7.25
        assert end <= width - 16 and ((line > y and after == 16) or end < after)


def test_ticks_stop_before_the_words_at_the_end() -> None:
    _, _, drawn = svg(BarChart((Lane("lane", (Bar(0, 105, "free"),)),), 105, "bytes"))
    ticks = [one.text for one in of(drawn, "text") if one.get("text-anchor") == "middle"]
    ends = [one.text for one in of(drawn, "text") if one.get("text-anchor") == "end"]
    assert ticks == ["0", "20", "40", "60", "80"] and ends == ["105 bytes"]  # 100 would touch it
    places = [x1 for x1, y1, _, y2 in lines(drawn) if y1 != y2]
    steps = [after - before for before, after in pairwise(places)]
    assert len(places) == 6 and steps == [pytest.approx(steps[0], abs=0.2)] * 5


@given(extent=st.floats(4, 1e9))
def test_ticks_are_few_and_round(extent: float) -> None:
    step = tick_step(extent)
    assert 4 <= extent / step < 10 and str(int(step)).rstrip("0") in ("1", "2", "5")


@pytest.mark.parametrize(
    ("extent", "step"),
    [(0.5, 1), (3.9, 1), (4, 1), (7.9, 1), (8, 2), (19, 2), (20, 5), (39, 5), (40, 10), (79, 10), (80, 20), (200, 50), (400, 100)],
)
def test_a_step_gives_at_least_four_ticks(extent: float, step: float) -> None:
    assert tick_step(extent) == step


def test_a_page_from_top_to_bottom() -> None:
    """A lane has 22 pixels and so has a row of a grid; what stands in a bar, a cell or a legend's line is 13 below its top."""
    bars = Bar(0, 50, "weights", "w0"), Bar(50, 100, "free", "free")
    lanes = Lane("one", bars, ("1", "22"), "first"), Lane("two", (Bar(25, 75, "pull", share=0.5),), ("333", "4"), "second")
    grid = CellGrid(("c0", "c1"), ("r0", "row 1"), ((Cell("1.0", "0"), Cell("x", "1")), (Cell("a", "2"), Cell("2", "3"))), "caption")
    _, height, drawn = svg(BarChart(lanes, 100, "us", ("a", "head")), grid)
    ends, column, row = (16 + 10 + 3 * 7.25 + 14 + 3 * 7.25, 83.5 + 14 + 4 * 7.25), 3 * 7.25 + 12, 16 + 5 * 7.25 + 8
    ticks = [(140.5 + 743.5 * place / 5, 106) for place in range(5)]
    wanted = [
        *(("Title", 16, 30), ("Note", 16, 56), ("weights", 36, 81), ("free", 120.75, 81), ("pull", 183.75, 81)),
        *(("a", ends[0], 106), ("head", ends[1], 106), ("100 us", 884, 106)),
        *((str(20 * place), *tick) for place, tick in enumerate(ticks)),
        *(("first", 16, 129), ("one", 26, 150), ("1", ends[0], 150), ("22", ends[1], 150)),
        *(("w0", 140.5 + 743.5 / 4, 151), ("free", 140.5 + 743.5 * 3 / 4, 151)),
        *(("second", 16, 173), ("two", 26, 194), ("333", ends[0], 194), ("4", ends[1], 194)),
        *(("c0", row + column / 2, 228), ("c1", row + column * 3 / 2, 228)),
        *(("r0", row - 8, 249), ("1.0", row + column / 2, 249), ("x", row + column * 3 / 2, 249)),
        *(("row 1", row - 8, 271), ("a", row + column / 2, 271), ("2", row + column * 3 / 2, 271), ("caption", 16, 294)),
    ]
    found = [(one.text, *numbers(one, "x", "y")) for one in of(drawn, "text")]
    assert [text for text, *_ in found] == [text for text, *_ in wanted] and height == 330
    assert all(a[1:] == pytest.approx(b[1:], abs=0.1) for a, b in zip(found, wanted, strict=True))
    assert [numbers(one, "y", "height") for one in of(drawn, "rect")] == [
        *([70, 14], [70, 14], [70, 14], [138, 18], [138, 18], [140.5, 13], [182, 18], [191, 9]),
        *([234, 22], [234, 22], [256, 22], [256, 22]),
    ]
    assert [(y1, y2) for _, y1, _, y2 in lines(drawn)] == [*[(110, 202)] * 6, (147, 147), (191, 191)]
    assert [one.text for one in of(drawn, "title")] == ["w0", "free", "1.0", "x", "a", "2"]


@pytest.mark.parametrize(
    ("headings", "texts", "longest"),
    [(("c0", "c"), ("1", "long text"), 9), (("heading", "c"), ("1", "2"), 7), (("c", "headings"), ("1", "2"), 8)],
)
def test_cells_are_as_wide_as_the_longest_text(headings: tuple[str, str], texts: tuple[str, str], longest: int) -> None:
    _, _, drawn = svg(CellGrid(headings, ("1", "label", "2"), (tuple(Cell(text, "0") for text in texts),) * 3, "[b]"))
    boxes = [numbers(one, "x", "width", "height") for one in of(drawn, "rect")]
    left, width = 16 + 5 * 7.25 + 8, longest * 7.25 + 12
    assert boxes == [pytest.approx([left + place * width, width, 22], abs=0.01) for place in (0, 1)] * 3
    shown = [one.text for one in of(drawn, "text")][2:]
    assert shown == [*headings, *(text for label in ("1", "label", "2") for text in (label, *texts)), "[b]"]
