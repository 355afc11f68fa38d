"""Every field of a configuration has more than one value somewhere: an option that nobody uses goes."""

import re

import pytest

from options_audit import ASKED, asker, values
from structure import PACKAGE


@pytest.fixture(scope="module")
def seen() -> dict[str, set[object]]:
    return values()


def test_every_option_is_used(seen: dict[str, set[object]]) -> None:
    assert [name for name, some in seen.items() if len(some) == 1 and not asker(name)] == []


def test_who_is_said_to_ask_does(seen: dict[str, set[object]]) -> None:
    """Each entry is of a field that `choose` leaves alone, and its file sets the field."""
    alone = {part for name, some in seen.items() if len(some) == 1 for part in (name, name.partition(".")[2])}
    assert [name for name in ASKED if name not in alone] == []
    files = {name.rpartition(".")[2]: PACKAGE / who for name, who in ASKED.items() if "/" in who}
    assert [name for name, file in files.items() if not re.search(rf"\b{name}\b", file.read_text())] == []
