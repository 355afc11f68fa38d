"""Mutants of results that travel as E4M3: which lanes agree on a scale, which scale belongs to which channels, and who sends it."""

from __future__ import annotations

from mutant import Mutant

TESTS = "tests/kernels/test_combine_e4m3.py"
AS_COLUMNS, AS_ROWS = (f"{TESTS}::test_edges_of_a_tile[tokens as columns]",), (f"{TESTS}::test_every_tile[128-random]",)

RESULTS_MUTANTS = (
    Mutant(
        "lanes of a whole warp agree on a scale, of which half may have left",
        "missing order",
        "E4m3Results.send",
        "Int32(FIRST_LANES) << (lane & LANES)",
        "Int32(-1)",
        AS_COLUMNS,
        (),
    ),
    Mutant("eight of the sixteen lanes agree on a scale", "too narrow", "E4m3Results.send", "(8, 4, 2, 1)", "(4, 2, 1)", AS_COLUMNS, ()),
    Mutant(
        "the second 128 channels of a vector have the scale of the first",
        "wrong base",
        "E4m3Results.add",
        "slot + first_scale + 2 * vector + (lane >> 4)",
        "slot + first_scale + 2 * vector",
        AS_COLUMNS,
        (),
    ),
    Mutant(
        "every piece of a result has the scales of the first",
        "wrong base",
        "scales_of",
        "plan.chunk // plan.row.format.channels",
        "0",
        (f"{TESTS}::test_pieces[1280-2]",),
        (),
    ),
    Mutant("rows 8 to 15 of a warp have the scales of rows 0 to 7", "wrong base", "finish_fc2", "step // 8", "0", AS_ROWS, ()),
    Mutant("two of a quad's four lanes agree on a scale", "too narrow", "pass_e4m3", "(1, 2)", "(1,)", AS_ROWS, ()),
)
