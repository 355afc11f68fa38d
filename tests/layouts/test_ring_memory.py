"""What docs/lab/hopper.md says of the symmetric memory with a ring is what the layouts give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megamoe_dsl.arch import SM90
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.kernels.moe.sm90.choose import given_pool_rows
from megamoe_dsl.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "hopper.md"
ROW = re.compile(r"^\| (\d+), (\d+) \| (.*) \|$", re.M)
TABLE = [(int(ranks), int(tokens), cells.replace("*", "").split(" | ")) for ranks, tokens, cells in ROW.findall(PAGE.read_text())]


def mebibytes(preset: str, ranks: int, tokens: int, rows: int | None) -> str:
    local = PRESETS[preset].experts_per_rank
    problem = PRESETS[preset].problem(tokens, recipe="fp8xfp8", num_ranks=ranks, num_experts=ranks * local)
    size = symmetric_buffer(problem, SM90, given_pool_rows(problem, rows)).size / 2**20
    return f"{size:.1f}" if size < 10 else f"{size:.0f}"


def test_the_table_has_two_groups_of_ten() -> None:
    assert [ranks for ranks, _, _ in TABLE] == 10 * [2] + 10 * [8]


@pytest.mark.parametrize(("ranks", "tokens", "cells"), TABLE)
def test_our_figures_are_those_of_the_layouts(ranks: int, tokens: int, cells: list[str]) -> None:
    ours = [mebibytes(preset, ranks, tokens, rows) for preset in ("flash", "pro") for rows in (None, 0)]
    assert [*cells[:2], *cells[3:5]] == ours


@pytest.mark.parametrize(("ranks", "tokens", "cells"), TABLE)
def test_a_ring_takes_less_than_eight_tenths_of_the_baseline(ranks: int, tokens: int, cells: list[str]) -> None:
    for ours, theirs in ((cells[1], cells[2]), (cells[4], cells[5])):
        assert float(ours) <= 0.8 * float(theirs)
