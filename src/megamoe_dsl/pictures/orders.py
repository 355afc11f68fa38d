"""Pictures of orders: scale factors in an atom, swizzled rows over the banks."""

from __future__ import annotations

from ..hardware.fragments import COLUMNS, QUARTER, swizzle_atom, utccp_atom, utccp_source, wavefronts
from ..hardware.operand_tile import CHUNK, CORE_ROWS
from ..kernels.moe.config import MegaMoeConfig
from ..layouts.algebra import idx2crd
from .chart import Cell, CellGrid, Picture
from .subject import require_sm100

BANK_ROW = 128  # bytes: all 32 banks


def draw_scales(config: MegaMoeConfig, tokens: int) -> Picture:
    """Each cell is a word: the row whose four scales it holds.  Raises `ConfigError` for SM90, whose scales are plain rows."""
    require_sm100(config, "scales", "those of sm_90a are FP32 in the order of the pool")
    row_of = {utccp_atom()(row): row for row in range(QUARTER * COLUMNS)}
    rows = tuple(
        tuple(Cell(f"row {(row := row_of[utccp_source()(lane, column)])}", str(row // QUARTER)) for column in range(COLUMNS))
        for lane in range(QUARTER)
    )
    grid = CellGrid(
        tuple(f"column {c}" for c in range(COLUMNS)),
        tuple(f"lane {lane}, byte {lane * 16}" for lane in range(QUARTER)),
        rows,
        caption=f"Layout of words: {utccp_atom()}. Memory runs from left to right, then down.",
    )
    note = (
        "512 bytes: 128 rows x 4 scales of 32 channels. tcgen05.cp (UTCCP) copies 16 bytes a lane and repeats them in the four quarters of "
        "the lanes of tensor memory, so row m lands in lane m % 32, column m / 32."
    )
    return Picture("Scale factors in UTCCP order", note, (grid,))


def draw_swizzle(config: MegaMoeConfig, tokens: int) -> Picture:
    """How the swizzles of operand tiles spread their rows over the banks."""
    return Picture(
        "Swizzles and banks",
        "Where the 16-byte chunks of eight rows lie: a cell is named row.chunk and stands over its four banks. A column of the tile, "
        "which stmatrix writes and the tensor core reads, is one chunk of all rows: one color, which should meet every bank group once.",
        tuple(_swizzle_grid(span) for span in (128, 64)),
    )


def _swizzle_grid(span: int) -> CellGrid:
    atom, per_row = swizzle_atom(span), BANK_ROW // CHUNK
    chunk_at = {atom(row, chunk * CHUNK) // CHUNK: (row, chunk) for row in range(CORE_ROWS) for chunk in range(span // CHUNK)}
    rows: list[list[Cell]] = [[] for _ in range(len(chunk_at) // per_row)]
    for place in range(len(chunk_at)):
        row, chunk = chunk_at[place]
        rows[idx2crd(place, (per_row, len(rows)))[1]].append(Cell(f"{row}.{chunk}", str(chunk)))
    column = [atom(row, 0) for row in range(CORE_ROWS)]
    plain = [row * span for row in range(CORE_ROWS)]
    return CellGrid(
        tuple(f"{4 * i}-{4 * i + 3}" for i in range(per_row)),
        tuple(f"byte {BANK_ROW * i}" for i in range(len(rows))),
        tuple(map(tuple, rows)),
        caption=f"SW{span}: a column of eight rows takes {wavefronts(column, CHUNK)} wavefront, unswizzled {wavefronts(plain, CHUNK)}.",
    )
