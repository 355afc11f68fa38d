"""What is chosen for a shape that nobody has tuned (bench/regret.py), and the page that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.bench.results import Results
from megamoe_dsl.presets import PRESETS
from regret import Regret, details, files_of_tables, regrets, summary

PAGE = Path(__file__).parents[1] / "docs" / "lab" / "tuning.md"


@pytest.fixture(scope="module")
def found() -> list[Regret]:
    return [one for file in files_of_tables() for one in regrets(Results.read(file))]


def test_the_page_has_its_tables(found: list[Regret]) -> None:
    page = PAGE.read_text()
    assert summary(found) in page and details(found) in page


def test_a_choice_is_never_faster_than_the_fastest(found: list[Regret]) -> None:
    assert all(one.share >= 0 and (one.share > 0 or one.chosen == one.best or not one.apart) for one in found)
    assert any(one.chosen == one.best for one in found) and any(one.apart for one in found)


def test_what_the_records_taught() -> None:
    """Pairs from two blocks of tokens per expert on; tiles of 4-bit weights that hold 12 expected tokens and one deviation."""
    chosen = {tokens: choose(PRESETS["pro"].problem(8192, recipe="fp8xfp8"), Target(SM90, 132), tokens).cluster for tokens in (1024, 1025)}
    assert chosen == {1024: 1, 1025: 2}
    packed, whole = (PRESETS["flash"].problem(64, recipe=recipe) for recipe in ("fp8xmxfp4", "fp8xfp8"))
    assert [choose(one, Target(SM90, 132), 64).block_m for one in (packed, whole)] == [16, 32]
