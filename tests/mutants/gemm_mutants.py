"""Mutants of the gemm family, its short simulation, and its PTX-level faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mutant import Mutant

FOLDER = "kernels/gemm"
ON_SM90 = ("sm_90a",)
RUNS = ("tests/kernels/test_gemm_end_to_end.py::test_every_element_is_exact",)


def mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """One of a file of the family's folder; all have the same nearest tests."""
    return Mutant(name, kind, f"{FOLDER}/{file}", old, new, RUNS, ON_SM90)


MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "rows of every group's B are the first one's",
        "wrong base",
        "load.py",
        "tile.group * config.problem.n + tile.n_block * config.block_n",
        "tile.n_block * config.block_n",
    ),
    mutant("scales of every group's B are the first one's", "wrong base", "math.py", "base = tile.group * problem.scale_rows", "base = 0"),
    mutant(
        "the second row of a warpgroup's scales is its first",
        "wrong base",
        "math.py",
        "cutlass.min(first + i, problem.scale_rows - 1)",
        "cutlass.min(first, problem.scale_rows - 1)",
    ),
    mutant(
        "a packed group begins where the one before it begins",
        "off by one",
        "group_table.py",
        "load_u32(entry - 4), ctx.args.m)",
        "load_u32(entry - 8), ctx.args.m)",
    ),
    mutant(
        "a role reads the table of groups before it is written",
        "missing order",
        "group_table.py",
        "cutlass.max(rows, Int32(0)), first)\n    sync_warp()\n",
        "cutlass.max(rows, Int32(0)), first)\n",
    ),
    mutant(
        "a row more than a group has is stored",
        "off by one",
        "store.py",
        "if (row < rows) & (column < config.problem.n):",
        "if (row <= rows) & (column < config.problem.n):",
    ),
    mutant(
        "a box is stored before its warp has written it",
        "missing order",
        "store.py",
        "    fence_async_shared()\n    sync_warp()\n    if cute.arch.lane_idx() == 0:\n        store_tile",
        "    if cute.arch.lane_idx() == 0:\n        store_tile",
    ),
    mutant(
        "a box is filled while TMA reads it",
        "stale buffer",
        "store.py",
        "    return 0 if odd else config.boxes - 1",
        "    return config.boxes",
    ),
    mutant(
        "the counter of tiles is not set back",
        "missing clean-up",
        "tile_scheduler.py",
        '            reduce_add_u32(ctx.args.counter, 0 - fetches * tiles, "relaxed", "gpu")',
        "            pass",
    ),
    mutant(
        "a cluster's second tile is its first",
        "off by one",
        "tile_scheduler.py",
        "following = advance_to_valid(blocks.forward(1))",
        "following = blocks",
    ),
    mutant(
        "a tile's first row is its block's among all, not in its group",
        "wrong base",
        "tile_scheduler.py",
        '        row = row + GroupTable(ctx.shared("group_table")).first_row(block.expert)\n',
        "",
    ),
    mutant(
        "a CTA ends while TMA reads its last box",
        "stale buffer",
        "math.py",
        "    # What TMA still reads is this CTA's.\n    wait_group_read(0)\n",
        "",
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: tiles of rows, of columns, with a ring ahead, and of
    groups in pairs, launched without a pause, race detector on."""
    from test_gemm_faults import SUBJECTS, how_noticed

    return next((sign for subject in SUBJECTS if (sign := how_noticed(None, subject)) is not None), None)


def ptx_faults() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    from test_gemm_faults import CASES, SEEDS, how_noticed

    def notice(fault: object, subject: str) -> str | None:
        return next((sign for seed in SEEDS if (sign := how_noticed(fault, subject, seed)) is not None), None)  # type: ignore[arg-type]

    for fault, subject in CASES:
        yield "sm_90a", f"{fault.name}, {subject}", lambda fault=fault, subject=subject: notice(fault, subject)
