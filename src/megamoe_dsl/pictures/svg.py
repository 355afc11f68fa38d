"""A picture as SVG, drawn with drawsvg: on a page of its own color, light or dark as the reader's system is."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from .chart import INK_ON_KIND, PAPER, Bar, BarChart, CellGrid, Picture, style

MARGIN = 16
WIDTH = 900
LINE = 22  # height of a lane
GAP = 14  # between columns of text
CHARACTER = 7.25  # width of one in the font at 12 px
NARROWEST_AXIS = 360
CHARACTERS = int((WIDTH - 2 * MARGIN) / CHARACTER)
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
HATCHES = {
    "rising": "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
    "falling": "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2",
    "upright": "M2,0 v6",
    "dots": "M2,2 h1 M5,5 h1",
}
"""Paths in a square of six pixels."""
STROKED = ("rule", "line")  # of PAPER; the others are fills


def to_svg(picture: Picture) -> str:
    """A document, 900 pixels wide unless its text needs more."""
    import drawsvg

    sheet = _Sheet(drawsvg)
    sheet.text(MARGIN, sheet.y + 14, picture.title, size=15, bold=True)
    sheet.y += 30
    sheet.paragraph(picture.note)
    sheet.y += 8
    for chart in picture.charts:
        if isinstance(chart, BarChart):
            _bars(sheet, chart)
        else:
            _grid(sheet, chart)
        sheet.y += 14
    return sheet.document()


class _Sheet:
    """Elements so far; `y` is where the next one goes, `width` what they need."""

    def __init__(self, drawsvg: Any) -> None:
        self.drawsvg = drawsvg
        self.content = drawsvg.Group(font_family=FONT)
        self.patterns: dict[str, Any] = {}
        self.y, self.width = float(MARGIN), 0.0

    def text(self, x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", paper: str = "ink", bold: bool = False) -> None:
        look = {"text_anchor": anchor} if anchor != "start" else {}
        if bold:
            look["font_weight"] = "bold"
        self._text(x, y, text, size, fill=PAPER[paper].light, class_=paper, **look)
        right = x + len(text) * CHARACTER * size / 12 if anchor == "start" else x
        self.width = max(self.width, right)

    def _text(self, x: float, y: float, text: str, size: int, **look: Any) -> None:
        self.content.append(self.drawsvg.Text(text, size, round(x, 1), round(y, 1), **look))

    def paragraph(self, text: str) -> None:
        for line in wrap(text, CHARACTERS):
            self.text(MARGIN, self.y + 10, line, paper="soft")
            self.y += 16

    def rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        points = (round(at, 1) for at in (x1, y1, x2, y2))
        self.content.append(self.drawsvg.Line(*points, stroke=PAPER["rule"].light, class_="rule"))

    def box(self, x: float, y: float, width: float, height: float, kind: str, label: str = "", **look: Any) -> None:
        """With the label inside where it fits, and as what a pointer shows in any case."""
        frame = {"stroke": "#666", "stroke_width": 0.5, **look}
        box = self.drawsvg.Rectangle(*(round(size, 2) for size in (x, y, width, height)), fill=self.fill(kind), **frame)
        if label:
            box.append_title(label)
        self.content.append(box)
        self.width = max(self.width, x + width)
        if label and len(label) * CHARACTER < width - 2 and height >= 14:
            if style(kind).hatch:  # room for a label among its lines
                needed = len(label) * CHARACTER + 2
                corner = round(x + (width - needed) / 2, 1), round(y + height / 2 - 6.5, 1)
                self.content.append(self.drawsvg.Rectangle(*corner, round(needed, 1), 13, opacity=0.8, **_ground(kind)))
            ink = {"fill": PAPER["ink"].light, "class_": "ink"} if style(kind).quiet else {"fill": INK_ON_KIND}
            self._text(x + width / 2, y + height / 2 + 4, label, 12, text_anchor="middle", **ink)

    def fill(self, kind: str) -> str:
        """The kind's color, or a pattern of lines over it."""
        look = style(kind)
        if not look.hatch:
            return look.color
        name = "hatch-" + kind.replace(" ", "-")
        if name not in self.patterns:
            pattern = self.drawsvg.Pattern(6, 6, id=name, patternUnits="userSpaceOnUse")
            pattern.append(self.drawsvg.Rectangle(0, 0, 6, 6, **_ground(kind)))
            ink = {"stroke": PAPER["line"].light, "class_": "line"} if look.quiet else {"stroke": INK_ON_KIND, "stroke_opacity": 0.3}
            pattern.append(self.drawsvg.Path(d=HATCHES[look.hatch], fill="none", **ink))
            self.patterns[name] = pattern
        return f"url(#{name})"

    def document(self) -> str:
        drawing = self.drawsvg.Drawing(max(WIDTH, round(self.width + MARGIN)), round(self.y + MARGIN), id_prefix="id")
        dark = " ".join(f".{name} {{ {'stroke' if name in STROKED else 'fill'}: {one.dark}; }}" for name, one in PAPER.items())
        drawing.append_css(f"@media (prefers-color-scheme: dark) {{ {dark} }}")
        for pattern in self.patterns.values():
            drawing.append_def(pattern)
        drawing.append(self.drawsvg.Rectangle(0, 0, "100%", "100%", fill=PAPER["page"].light, class_="page"))
        drawing.append(self.content)
        return str(drawing.as_svg())


def _ground(kind: str) -> dict[str, str]:
    return {"fill": style(kind).color} | ({"class_": "quiet"} if style(kind).quiet else {})


def _bars(sheet: _Sheet, chart: BarChart) -> None:
    _legend(sheet, chart)
    indent = 10 if any(lane.group for lane in chart.lanes) else 0
    columns = [[lane.name for lane in chart.lanes]]
    columns += [[heading, *(lane.details[i] for lane in chart.lanes)] for i, heading in enumerate(chart.headings)]
    ends, x = [], float(MARGIN + indent)
    for column in columns:
        x += max(map(len, column)) * CHARACTER
        ends.append(x)
        x += GAP
    axis = max(NARROWEST_AXIS, WIDTH - MARGIN - x)
    for heading, end in zip(chart.headings, ends[1:], strict=True):
        sheet.text(end, sheet.y + 14, heading, anchor="end", paper="soft")
    groups = len({lane.group for lane in chart.lanes if lane.group})
    _ticks(sheet, chart, x, axis, LINE * (len(chart.lanes) + groups))
    sheet.y += LINE
    group = ""
    for lane in chart.lanes:
        if lane.group != group:
            group = lane.group
            sheet.text(MARGIN, sheet.y + 15, group, bold=True)
            sheet.y += LINE
        sheet.text(MARGIN + indent, sheet.y + 14, lane.name)
        for detail, end in zip(lane.details, ends[1:], strict=True):
            sheet.text(end, sheet.y + 14, detail, anchor="end")
        sheet.rule(x, sheet.y + LINE / 2, x + axis, sheet.y + LINE / 2)
        for bar in lane.bars:
            _bar(sheet, bar, x + bar.start / chart.extent * axis, max(1.0, (bar.end - bar.start) / chart.extent * axis))
        sheet.y += LINE


def _bar(sheet: _Sheet, bar: Bar, x: float, width: float) -> None:
    height = LINE - 4
    if bar.share >= 1:
        sheet.box(x, sheet.y + 2, width, height, bar.kind, bar.label)
        return
    filled = max(1.0, bar.share * height)
    sheet.box(x, sheet.y + 2, width, height, bar.kind, fill_opacity=0.3)
    sheet.box(x, sheet.y + 2 + height - filled, width, filled, bar.kind, bar.label)


def _legend(sheet: _Sheet, chart: BarChart) -> None:
    x = float(MARGIN)
    for kind in chart.kinds:
        needed = 20 + len(kind) * CHARACTER + GAP
        if x + needed > WIDTH - MARGIN:
            x = float(MARGIN)
            sheet.y += LINE - 4
        sheet.box(x, sheet.y, 14, 14, kind)
        sheet.text(x + 20, sheet.y + 11, kind)
        x += needed
    sheet.y += LINE


def _ticks(sheet: _Sheet, chart: BarChart, x: float, axis: float, height: float) -> None:
    end = f"{chart.extent:,.0f} {chart.unit}"
    sheet.text(x + axis, sheet.y + 14, end, anchor="end", paper="soft")
    room = axis - len(end) * CHARACTER - GAP
    step = tick_step(chart.extent)
    for count in range(int(chart.extent / step) + 1):
        place, text = x + count * step / chart.extent * axis, f"{count * step:,.0f}"
        sheet.rule(place, sheet.y + LINE - 4, place, sheet.y + LINE + height)
        if place - x + len(text) * CHARACTER / 2 < room:
            sheet.text(place, sheet.y + 14, text, anchor="middle", paper="soft")


def tick_step(extent: float) -> float:
    """A distance of four to nine ticks: 1, 2 or 5 times a power of ten, at least 1."""
    power = 1.0
    while 10 * power * 4 <= extent:
        power *= 10
    return power * next((factor for factor in (5, 2) if factor * power * 4 <= extent), 1)


def _grid(sheet: _Sheet, grid: CellGrid) -> None:
    left = MARGIN + max(map(len, grid.labels), default=0) * CHARACTER + 8
    width = max(len(text) for text in (*grid.headings, *(cell.text for row in grid.rows for cell in row))) * CHARACTER + 12
    for i, heading in enumerate(grid.headings):
        sheet.text(left + (i + 0.5) * width, sheet.y + 12, heading, anchor="middle", paper="soft")
    sheet.y += 18
    for label, row in zip(grid.labels, grid.rows, strict=True):
        sheet.text(left - 8, sheet.y + LINE / 2 + 4, label, anchor="end", paper="soft")
        for i, cell in enumerate(row):
            sheet.box(left + i * width, sheet.y, width, LINE, cell.kind, cell.text)
        sheet.y += LINE
    sheet.y += 6
    sheet.paragraph(grid.caption)
