"""How much faster than the baseline a launch could be (bench/limits.py): the page has the tables of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from limits import LINEARS, POINTS, budget, computing, reading, records_of

PAGE = (Path(__file__).parents[1] / "docs" / "hopper.md").read_text()


def test_the_page_has_the_tables() -> None:
    assert reading(records_of(POINTS)) in PAGE and computing(list(records_of(LINEARS))) in PAGE


@pytest.mark.sweep
def test_the_page_has_the_model_s_budget() -> None:
    assert budget(records_of(LINEARS)) in PAGE
