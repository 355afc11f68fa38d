"""Pictures of fragments: which lane of a warp has a value of a matrix, in which register."""

from __future__ import annotations

from ..hardware.fragments import WINDOW, core_matrix, repeat_values, tmem_16x256b
from ..kernels.moe.config import MegaMoeConfig
from ..layouts.algebra import Layout
from .chart import Cell, CellGrid, Picture

ROWS, COLUMNS, LANES = 16, 8, 32


def wgmma_sums(columns: int) -> Layout:
    """D of wgmma.m64nN: (lane, (q, h, j)) -> row + 16 * column of a warp's 16 rows; register 4 j + 2 h + q (PTX ISA, "Register Fragments
    for wgmma.mma_async")."""
    return repeat_values(core_matrix(1, ROWS), Layout(2, 8), Layout(columns // 8, 8 * ROWS))


def draw_fragments(config: MegaMoeConfig, tokens: int) -> Picture:
    """Where the epilogues of both architectures find the sums of a tile."""
    wgmma = _grid(wgmma_sums(COLUMNS), ROWS, "row", "D of wgmma.m64nN: a warp's 16 rows, 8 of N columns; the next 8 begin at register 4.")
    tmem = _grid(tmem_16x256b(COLUMNS // 8), WINDOW, "TMEM lane", "tcgen05.ld.16x256b.x1: 16 lanes, 8 columns; xN repeats them.")
    note = (
        "A cell is named lane.register. Colors are the lanes of a quad, which have a row. Both fragments repeat one 8 x 8 core matrix, so "
        "an epilogue that reduces over a row asks four lanes, and one that reduces over a column asks eight."
    )
    return Picture("Fragments of sums", note, (wgmma, tmem))


def _grid(fragment: Layout, column_stride: int, row_name: str, caption: str) -> CellGrid:
    holder = {fragment(lane, register): (lane, register) for lane in range(LANES) for register in range(fragment[1].size)}
    rows = tuple(
        tuple(Cell(f"{(one := holder[row + column_stride * column])[0]}.{one[1]}", str(one[0] % 4)) for column in range(COLUMNS))
        for row in range(ROWS)
    )
    headings, labels = (tuple(f"{name}{i}" for i in range(count)) for name, count in (("c", COLUMNS), (f"{row_name} ", ROWS)))
    return CellGrid(headings, labels, rows, caption=f"{caption} Layout: {fragment}.")
