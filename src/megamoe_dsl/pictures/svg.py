"""A picture as SVG, drawn with drawsvg."""

from __future__ import annotations

from typing import Any

from .chart import BarChart, Grid, Picture
from .palette import colour

MARGIN = 16
LINE = 22  # height of a lane
CHARACTER = 7.2  # width of one in the font at 12 px
AXIS = 560
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def to_svg(picture: Picture) -> str:
    """A document with a white background."""
    import drawsvg

    sheet = _Sheet(drawsvg)
    sheet.text(MARGIN, sheet.y + 14, picture.title, size=15, weight="bold")
    sheet.y += 30
    for line in _wrap(picture.note, 110):
        sheet.text(MARGIN, sheet.y + 10, line, fill="#555")
        sheet.y += 16
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
        self.drawsvg, self.elements = drawsvg, []  # type: Any, list[Any]
        self.y, self.width = float(MARGIN), 0.0

    def text(
        self, x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", fill: str = "#111", weight: str = "normal"
    ) -> None:
        style = {"font_family": FONT, "text_anchor": anchor, "fill": fill, "font_weight": weight}
        self.elements.append(self.drawsvg.Text(text, size, x, y, **style))
        right = x + len(text) * CHARACTER * size / 12 if anchor == "start" else x
        self.width = max(self.width, right)

    def box(self, x: float, y: float, width: float, height: float, kind: str, label: str = "") -> None:
        box = self.drawsvg.Rectangle(x, y, width, height, fill=colour(kind), stroke="#666", stroke_width=0.5)
        if label:
            box.append_title(label)
        self.elements.append(box)
        self.width = max(self.width, x + width)
        if label and len(label) * CHARACTER < width and height >= 12:
            self.text(x + width / 2, y + height / 2 + 4, label, anchor="middle")

    def document(self) -> str:
        drawing = self.drawsvg.Drawing(self.width + MARGIN, self.y + MARGIN)
        drawing.append(self.drawsvg.Rectangle(0, 0, "100%", "100%", fill="white"))
        drawing.extend(self.elements)
        return str(drawing.as_svg())


def _bars(sheet: _Sheet, chart: BarChart) -> None:
    columns = [[lane.name for lane in chart.lanes]]
    columns += [[heading, *(lane.details[i] for lane in chart.lanes)] for i, heading in enumerate(chart.headings)]
    ends, x = [], float(MARGIN)
    for column in columns:
        x += max(map(len, column)) * CHARACTER
        ends.append(x)
        x += 14
    for heading, end in zip(chart.headings, ends[1:], strict=True):
        sheet.text(end, sheet.y + 14, heading, anchor="end", fill="#555")
    sheet.text(x, sheet.y + 14, "0", fill="#555")
    sheet.text(x + AXIS, sheet.y + 14, f"{chart.extent:,.0f} {chart.unit}", anchor="end", fill="#555")
    sheet.y += LINE
    for lane in chart.lanes:
        sheet.text(MARGIN, sheet.y + 14, lane.name)
        for detail, end in zip(lane.details, ends[1:], strict=True):
            sheet.text(end, sheet.y + 14, detail, anchor="end")
        sheet.elements.append(sheet.drawsvg.Line(x, sheet.y + LINE / 2, x + AXIS, sheet.y + LINE / 2, stroke="#ddd"))
        for bar in lane.bars:
            start = bar.start / chart.extent * AXIS
            sheet.box(x + start, sheet.y + 2, max(1.5, (bar.end - bar.start) / chart.extent * AXIS), LINE - 4, bar.kind, bar.label)
        sheet.y += LINE
    sheet.width = max(sheet.width, x + AXIS)


def _grid(sheet: _Sheet, grid: Grid) -> None:
    left = MARGIN + max(map(len, grid.labels), default=0) * CHARACTER + 8
    width = max(len(text) for text in (*grid.headings, *(cell.text for row in grid.rows for cell in row))) * CHARACTER + 12
    for i, heading in enumerate(grid.headings):
        sheet.text(left + (i + 0.5) * width, sheet.y + 12, heading, anchor="middle", fill="#555")
    sheet.y += 18
    for n, (label, row) in enumerate(zip(grid.labels, grid.rows, strict=True)):
        height = LINE * (grid.heights[n] if grid.heights else 1.0)
        sheet.text(left - 8, sheet.y + height / 2 + 4, label, anchor="end", fill="#555")
        for i, cell in enumerate(row):
            sheet.box(left + i * width, sheet.y, width, height, cell.kind, cell.text)
        sheet.y += height
    for line in _wrap(grid.caption, 110):
        sheet.y += 16
        sheet.text(MARGIN, sheet.y, line, fill="#555")


def _wrap(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)
