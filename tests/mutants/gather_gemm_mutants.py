"""Mutants of the gather_gemm family, and its short simulation; its faults of PTX are among gemm's."""

from __future__ import annotations

from mutant import Mutant

FOLDER = "kernels/gather_gemm"
RUNS = ("tests/kernels/test_gather_gemm.py::test_every_row_is_exact",)
ACTIVATED = ("tests/kernels/test_gather_gemm.py::test_gate_and_up_are_activated_and_quantised",)
LISTS = ("tests/kernels/test_gather_gemm.py::test_rows_that_are_not_there_are_those_that_are",)


def mutant(name: str, kind: str, file: str, old: str, new: str, nearest: tuple[str, ...] = RUNS) -> Mutant:
    """One of a file of the family's folder."""
    return Mutant(name, kind, f"{FOLDER}/{file}", old, new, nearest, ("sm_90a",))


MUTANTS = (
    mutant("gathered rows are read before the tensor core sees them", "missing order", "context.py", "        fence_async_shared()\n", ""),
    Mutant(
        "rows are gathered past the tile's last",
        "off by one",
        f"{FOLDER}/gather.py",
        "rows[i] < tile.valid_m",
        "rows[i] <= tile.valid_m",
        RUNS,
        ("sm_90a",),
        equivalent="a row more is fetched and multiplied, of which nothing is stored: 128 bytes for each K block",
    ),
    mutant("the second warp gathers what the first does", "wrong base", "gather.py", "number * ROWS_PER_COPY + lane", "0 * number + lane"),
    mutant("chunks lie where no swizzle puts them", "wrong base", "gather.py", "(chunk ^ (row & 7)) << 4", "chunk << 4"),
    mutant("a row of the list may lie past the tokens", "off by one", "gather.py", "ctx.args.a_rows - 1)", "ctx.args.a_rows)", LISTS),
    mutant(
        "blocks before a run of 32 experts are not counted",
        "wrong base",
        "row_table.py",
        "(blocks_before + total - blocks)",
        "(total - blocks)",
    ),
    mutant(
        "a list is read where D's rows begin",
        "wrong base",
        "context.py",
        "if not self.config.problem.places_rows:",
        "if self.config.problem.gathers:",
    ),
    mutant(
        "up first is read as gate first",
        "wrong base",
        "gate_up.py",
        "-problem.n // 2 if up_first else problem.n // 2",
        "problem.n // 2",
        ACTIVATED,
    ),
    mutant("scales of up are those of gate", "wrong base", "context.py", "+ second * (problem.scale_rows // 2)", "+ 0 * second", ACTIVATED),
    mutant("interleaved channels are put in pairs", "wrong number", "epilogue_gate_up.py", "transposed if", "joined_pairs if", ACTIVATED),
    mutant(
        "a row more than a tile has is activated and stored",
        "off by one",
        "epilogue_gate_up.py",
        "        if token < tile.valid_m:",
        "        if token <= tile.valid_m:",
        ACTIVATED,
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: rows gathered into blocks, race detector on."""
    from test_gemm_faults import how_noticed

    return how_noticed(None, "gathered")
