"""Tables of reference pages are those of the code, every field and error has its meaning there, and every environment variable its line."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from reference_pages import MADE, PAGES, PLACE, described, exceptions, kinds, made

ROOT = Path(__file__).parents[1]
TEXTS = {page.name: page.read_text() for page in PAGES.glob("*.md")}


@pytest.mark.parametrize("page", TEXTS)
def test_tables_are_current(page: str) -> None:
    assert made(TEXTS[page]) == TEXTS[page], "python bench/reference_pages.py"


def test_every_table_has_its_place_once() -> None:
    assert sorted(found[1] for text in TEXTS.values() for found in PLACE.findall(text)) == sorted(MADE)


def test_every_field_is_described() -> None:
    assert [
        f"{kind.__name__}.{one.name}"
        for kind, _ in kinds()
        for one in dataclasses.fields(kind)
        if one.init and not described(kind).get(one.name)
    ] == []


def test_every_error_says_what_it_is_raised_for() -> None:
    assert {"ProblemError", "WatchdogError", "Deadlock"} <= set(exceptions())
    assert [name for name, one in exceptions().items() if not one.__doc__] == []


def test_every_environment_variable_has_a_line() -> None:
    sources = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py") if "host" not in file.relative_to(ROOT).parts)
    read = set(re.findall(r'"(MEGAMOE_\w+)"', sources)) | set(re.findall(r'environ(?:\.get)?[\[(]"(\w+)"', sources))
    assert set(re.findall(r"(?m)^\| `(\w+)`", TEXTS["environment.md"])) == read
