"""A picture as rich renderables: in colors that dark and light terminals can show, and readable without."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .chart import Bar, BarChart, CellGrid, Lane, Picture, style, terminal_color

NARROWEST, WIDEST = 16, 96  # characters of an axis
EIGHTHS = "▁▂▃▄▅▆▇"
HARD_SPACE = "\u00a0"


def render(picture: Picture, width: int = 80) -> Group:
    """For `width` characters; an axis has at least 16."""
    parts: list[RenderableType] = [Text(picture.title, style="bold"), Text(picture.note, style="dim")]
    for chart in picture.charts:
        if isinstance(chart, BarChart):
            parts += [_legend(chart), _bars(chart, width)]
        else:
            parts.append(_grid(chart))
    return Group(*parts)


def _legend(chart: BarChart) -> Text:
    pairs = (
        (Text(style(kind).fill * 2, style=terminal_color(kind)), Text(f"{HARD_SPACE}{kind.replace(' ', HARD_SPACE)}  "))
        for kind in chart.kinds
    )
    return Text.assemble(*(part for pair in pairs for part in pair))


def _bars(chart: BarChart, width: int) -> Table:
    indent = "  " if any(lane.group for lane in chart.lanes) else ""
    names = max(len(name) for lane in chart.lanes for name in (indent + lane.name, lane.group))
    details = [max(len(heading), *(len(lane.details[i]) for lane in chart.lanes)) for i, heading in enumerate(chart.headings)]
    axis = min(WIDEST, max(NARROWEST, width - names - sum(details) - 2 * len(details) - 5))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="")
    table.add_column("", no_wrap=True, min_width=names)
    for heading, needed in zip(chart.headings, details, strict=True):
        table.add_column(heading, justify="right", no_wrap=True, min_width=needed)
    end = f"{chart.extent:,.0f} {chart.unit}"
    table.add_column("0" + end.rjust(axis - 1) if len(end) < axis - 1 else end.rjust(axis), no_wrap=True, min_width=axis)
    group = ""
    for lane in chart.lanes:
        if lane.group != group:
            group = lane.group
            table.add_row(Text(group, style="bold"))
        table.add_row(*map(Text, (indent + lane.name, *lane.details)), _strip(lane, chart.extent, axis))
    return table


def _strip(lane: Lane, extent: float, width: int) -> Text:
    cells = [Text(" ") for _ in range(width)]
    for bar in lane.bars:
        start = min(round(bar.start / extent * width), width - 1)
        end = min(max(start + 1, round(bar.end / extent * width)), width)
        cells[start:end] = _cells(bar, end - start)
    return Text.assemble(*cells)


def _cells(bar: Bar, width: int) -> list[Text]:
    """At least one character; the last of several is narrower, so that neighbors stay apart; a label only where it fits."""
    fill, color = style(bar.kind).fill, terminal_color(bar.kind)
    if bar.share < 1:
        fill = EIGHTHS[min(int(bar.share * 8), len(EIGHTHS) - 1)]
    characters = [fill] * width
    if width > 1 and fill == "█":
        characters[-1] = "▊"
    cells = [Text(character, style=color) for character in characters]
    start = (width - len(bar.label)) // 2
    if len(bar.label) < width:
        for i, character in enumerate(bar.label, start):
            cells[i] = Text(character, style=f"#000000 on {color}")
    return cells


def _grid(grid: CellGrid) -> RenderableType:
    table = Table(box=None, padding=(0, 0, 0, 0), header_style="dim")
    names = max(map(len, grid.labels))
    widths = [max(len(text) for text in (heading, *(row[i].text for row in grid.rows))) + 2 for i, heading in enumerate(grid.headings)]
    table.add_column("", no_wrap=True)
    for heading, width in zip(grid.headings, widths, strict=True):
        table.add_column(heading.center(width), no_wrap=True)
    for label, row in zip(grid.labels, grid.rows, strict=True):
        cells = zip(row, widths, strict=True)
        table.add_row(
            label.rjust(names) + " ",
            *(Text(cell.text.center(width), style=f"#000000 on {terminal_color(cell.kind)}") for cell, width in cells),
        )
    return Group(table, Text(grid.caption, style="dim")) if grid.caption else table
