"""Mutants of layers whose hidden and intermediate fill no whole tiles: what a row's end is to each role."""

from __future__ import annotations

from mutant import Mutant

COLUMNS, ROWS, PACKED = (
    f"tests/kernels/test_last_tiles.py::test_on_sm90[{name}]" for name in ("several pieces", "exact rows", "packed rows")
)
PIECES = "tests/layouts/test_whole_and_last_pieces.py::test_pieces_are_the_result_and_no_lane_reads_beyond_one"

LAST_TILE_MUTANTS = (
    Mutant(
        "Linear2 stores what weights that fill a tile up give",
        "wrong number",
        "CombineRow.holds",
        "byte < self.first_scale",
        "byte >= 0",
        (COLUMNS, ROWS),
        (),
    ),
    Mutant(
        "the last chunk of a token is as long as the others",
        "wrong number",
        "row_chunks",
        "min(chunk, num_bytes - begin)",
        "chunk",
        (COLUMNS,),
        (),
    ),
    Mutant(
        "the last piece of a result is as long as the others",
        "wrong number",
        "CombinePlan.channels",
        "select(part == self.pieces - 1, self.last_chunk, self.chunk)",
        "self.chunk",
        (COLUMNS,),
        (),
    ),
    Mutant(
        "a lane without channels reads what lies beyond the piece",
        "wrong number",
        "CombinePlan.place",
        "minimum(lane + vector * LANES, div(channels, VECTOR) - 1)",
        "lane + vector * LANES",
        (PIECES,),
        (),
    ),
    Mutant(
        "rows of y are as long as their pieces",
        "wrong base",
        "place_in_y",
        "Y_BYTES * plan.row.hidden",
        "plan.pieces * plan.chunk_bytes",
        (COLUMNS,),
        (),
    ),
    Mutant("up is filled up behind gate, not each on its own", "wrong base", "resized", "(parts, -1)", "(1, -1)", (PACKED,), ()),
)
