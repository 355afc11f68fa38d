"""Mutants of results that travel as E4M3: which lanes agree on a scale, which scale belongs to which channels, and who sends it."""

from __future__ import annotations

from mutant import Mutant

RESULTS = "kernels/mega_moe/results_e4m3.py"
ROWS = "kernels/mega_moe/sm90/epilogue_rows.py"
TESTS = "tests/kernels/test_combine_e4m3.py"
AS_COLUMNS, AS_ROWS = (f"{TESTS}::test_edges_of_a_tile[tokens as columns]",), (f"{TESTS}::test_every_tile[128-random]",)

RESULTS_MUTANTS = (
    Mutant(
        "lanes of a whole warp agree on a scale, of which half may have left",
        "missing order",
        RESULTS,
        "members = Int32(FIRST_LANES) << (lane & LANES)",
        "members = Int32(-1)",
        AS_COLUMNS,
        (),
    ),
    Mutant(
        "eight of the sixteen lanes agree on a scale",
        "too narrow",
        RESULTS,
        "for mask in (8, 4, 2, 1):",
        "for mask in (4, 2, 1):",
        AS_COLUMNS,
        (),
    ),
    Mutant(
        "the second 128 channels of a vector have the scale of the first",
        "wrong base",
        RESULTS,
        "2 * vector + (lane >> 4))",
        "2 * vector)",
        AS_COLUMNS,
        (),
    ),
    Mutant(
        "every piece of a result has the scales of the first",
        "wrong base",
        "kernels/mega_moe/combine.py",
        "return plan.part_bytes + part_of(plan, piece.index) * (plan.chunk // plan.results.channels)",
        "return plan.part_bytes + part_of(plan, piece.index) * 0",
        (f"{TESTS}::test_pieces[1280-2]",),
        (),
    ),
    Mutant(
        "rows 8 to 15 of a warp have the scales of rows 0 to 7",
        "wrong base",
        ROWS,
        "joined([of_pass[step // 8] for of_pass in exponents])",
        "joined([of_pass[0] for of_pass in exponents])",
        AS_ROWS,
        (),
    ),
    Mutant(
        "two of a quad's four lanes agree on a scale",
        "too narrow",
        "kernels/mega_moe/sm90/row_pass.py",
        "for mask in (1, 2):",
        "for mask in (1,):",
        AS_ROWS,
        (),
    ),
)
