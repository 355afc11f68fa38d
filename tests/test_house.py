"""The measures of `house.py` stay within their bounds, and its table shows them."""

from __future__ import annotations

import pytest

from house import BOUNDS, measures, table


@pytest.mark.parametrize("name", BOUNDS)
def test_a_measure_is_within_its_bound(name: str) -> None:
    assert measures()[name] <= BOUNDS[name][0]


def test_the_table_has_every_measure() -> None:
    assert [line.split(" | ")[0] for line in table().splitlines()[2:]] == [f"| {name}" for name in BOUNDS]
