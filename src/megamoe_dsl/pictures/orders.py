"""Pictures of orders: scale factors in an atom, swizzled rows over the banks, registers of fragments, and the tiles of each worker."""

from __future__ import annotations

from ..config_error import require
from ..hardware.fragments import WINDOW, fragment, tmem_16x256b, wavefronts
from ..hardware.operand_tile import CHUNK, CORE_ROWS, SF_ATOM_ROWS, Swizzle, utccp_row
from ..kernels.moe.config import MegaMoeConfig
from ..layouts.layout import Layout
from ..schedule.fused_moe import FC1
from .chart import Bar, BarChart, Cell, CellGrid, Lane, Picture
from .memory import require_sm100, sample_counts

BANK_ROW = 128  # bytes: all 32 banks
FRAGMENT_ROWS = 2 * CORE_ROWS  # of a warp
QUARTER = 32  # lanes of a TMEM quarter; every quarter holds the same scales
COLUMNS = SF_ATOM_ROWS // QUARTER


def draw_scales(config: MegaMoeConfig, tokens: int) -> Picture:
    """Each cell is a word and names the row of its four scales.  Raises `ConfigError` for SM90, which stores plain rows, and for BF16."""
    require_sm100(config, "scales", "those of sm_90a are FP32 in the order of the pool")
    require(config.problem.formats.scaled, "recipe", config.problem.recipe, "one with scales for a picture of scales")
    row_of = {utccp_row(row): row for row in range(SF_ATOM_ROWS)}
    rows = tuple(
        tuple(Cell(f"row {(row := row_of[COLUMNS * lane + column])}", str(row // QUARTER)) for column in range(COLUMNS))
        for lane in range(QUARTER)
    )
    grid = CellGrid(
        tuple(f"column {c}" for c in range(COLUMNS)),
        tuple(f"lane {lane}, byte {lane * 16}" for lane in range(QUARTER)),
        rows,
        caption=f"Layout of words: {Layout((QUARTER, COLUMNS), (COLUMNS, 1))}. Memory runs from left to right, then down.",
    )
    note = (
        f"512 bytes: 128 rows x 4 scales of {config.problem.formats.activations.channels} channels. tcgen05.cp (UTCCP) copies 16 bytes a "
        "lane and repeats them in the four quarters of the lanes of tensor memory, so row m lands in lane m % 32, column m / 32."
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
    swizzle, per_row = Swizzle(span), BANK_ROW // CHUNK
    chunk_at = {swizzle(row * span + chunk * CHUNK) // CHUNK: (row, chunk) for row in range(CORE_ROWS) for chunk in range(span // CHUNK)}
    rows: list[list[Cell]] = [[] for _ in range(len(chunk_at) // per_row)]
    for place in range(len(chunk_at)):
        row, chunk = chunk_at[place]
        rows[place // per_row].append(Cell(f"{row}.{chunk}", str(chunk)))
    plain = [row * span for row in range(CORE_ROWS)]
    column = [swizzle(byte) for byte in plain]
    return CellGrid(
        tuple(f"{4 * i}-{4 * i + 3}" for i in range(per_row)),
        tuple(f"byte {BANK_ROW * i}" for i in range(len(rows))),
        tuple(map(tuple, rows)),
        caption=f"SW{span}: a column of eight rows takes {wavefronts(column, CHUNK)} wavefront, unswizzled {wavefronts(plain, CHUNK)}.",
    )


def draw_fragments(config: MegaMoeConfig, tokens: int) -> Picture:
    """Where the epilogues of both architectures find the sums of a tile (PTX ISA, "Register Fragments for wgmma.mma_async")."""
    note = (
        "A cell is named lane.register. Colors are the lanes of a quad, which have a row. Both fragments repeat one 8 x 8 core matrix, so "
        "an epilogue that reduces over a row asks four lanes, and one that reduces over a column asks eight."
    )
    grids = (
        _fragment_grid(
            fragment(FRAGMENT_ROWS),
            FRAGMENT_ROWS,
            "row",
            "D of wgmma.m64nN: a warp's 16 rows, 8 of N columns; the next 8 begin at register 4.",
        ),
        _fragment_grid(tmem_16x256b(1), WINDOW, "TMEM lane", "tcgen05.ld.16x256b.x1: 16 lanes, 8 columns; xN repeats them."),
    )
    return Picture("Fragments of sums", note, grids)


def _fragment_grid(fragment: Layout, column_stride: int, row_name: str, caption: str) -> CellGrid:
    holder = {fragment(lane, register): (lane, register) for lane in range(32) for register in range(fragment[1].size)}
    places = [[holder[row + column_stride * column] for column in range(CORE_ROWS)] for row in range(FRAGMENT_ROWS)]
    rows = tuple(tuple(Cell(f"{lane}.{register}", str(lane % 4)) for lane, register in row) for row in places)
    headings, labels = (tuple(f"{name}{i}" for i in range(count)) for name, count in (("c", CORE_ROWS), (f"{row_name} ", FRAGMENT_ROWS)))
    return CellGrid(headings, labels, rows, caption=f"{caption} Layout: {fragment}.")


LANES = 12
TILES = 16  # of a lane: wide enough for their names


def draw_schedule(config: MegaMoeConfig, tokens: int) -> Picture:
    """Which tiles some of the workers take, in which order."""
    counts = sample_counts(config, tokens)
    lanes, most = list[Lane](), 0
    together, size = config.blocks_per_fetch, config.cluster // config.blocks_per_fetch  # workers of a cluster, and CTAs of each
    everyone = config.num_clusters * together
    drawn = sorted({round(n * (everyone - 1) / (LANES - 1)) for n in range(LANES)})  # from the first to the last SM
    for worker in drawn:
        blocks = list(config.order.blocks(config, counts, worker // together))[::together]
        most = max(most, len(blocks))
        bars, time = list[Bar](), 0
        for block in blocks[:TILES]:
            end = time + (config.fc1_k_blocks if block.phase == FC1 else config.fc2_k_blocks)
            bars.append(Bar(time, end, "Linear1" if block.phase == FC1 else "Linear2", f"{1 + block.phase}:{block.expert}"))
            time = end
        lanes.append(Lane(f"SM {', '.join(map(str, range(worker * size, worker * size + size)))}", tuple(bars), (str(len(blocks)),)))
    extent = max((lane.bars[-1].end for lane in lanes if lane.bars), default=1.0)
    word = "SM pairs" if size > 1 else "SMs"
    what = "all tiles" if most <= TILES else f"the first {TILES} tiles, of up to {most},"
    whose = f"all {len(lanes)} {word}" if len(lanes) == everyone else f"{len(lanes)} of {everyone} {word}"
    note = (
        f"Linear1 is {config.lookahead} of {config.problem.experts_per_rank} experts ahead of Linear2; routing of {tokens} tokens a "
        f"rank, {what} of {whose}. A tile is named linear:local expert, and is as wide as it has K blocks; waits are not drawn."
    )
    note += " Who is free takes the next tiles at run time: drawn is the order in which they are taken if all take equally long."
    return Picture("Schedule", note, (BarChart(tuple(lanes), extent, "K blocks", ("tiles",)),))
