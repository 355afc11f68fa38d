"""How much faster than the baseline a launch could be (bench/limits.py): the page has the tables of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from limits import LINEARS, POINTS, budget, computing, reading, records_of, short_k

PAGE = (Path(__file__).parents[1] / "docs" / "lab" / "hopper.md").read_text()


def test_the_page_has_the_tables() -> None:
    found = list(records_of(LINEARS))
    assert reading(records_of(POINTS)) in PAGE and computing(found) in PAGE and short_k(found) in PAGE


@pytest.mark.sweep
def test_the_page_has_the_model_s_budget() -> None:
    """Within a tenth, so that a better model need not change the page."""
    first, *_ = lines = budget(records_of(LINEARS)).splitlines()
    written = PAGE[PAGE.index(first) :].splitlines()[: len(lines)]
    for one, other in zip(lines[2:], written[2:], strict=True):
        (name, *joules), (there, *theirs) = ([cell.strip() for cell in line.strip("|").split("|")] for line in (one, other))
        assert name == there and [float(cell) for cell in joules] == pytest.approx([float(cell) for cell in theirs], rel=0.1, abs=0.005)
