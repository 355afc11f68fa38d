"""Predicted times beside measured and published ones: the points that are cheap; docs/predict.md has all, and its figures are held here too."""

import re
from pathlib import Path

import pytest

from prediction_errors import POINTS, VARIANTS, measured, pairs, pairs_table, points_table, published, published_table, rms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "predict.md").read_text()
MOST_RMS, MOST_RMS_SM100 = 0.06, 0.10
LEAST_RIGHT = 0.95


def test_points_of_the_readme() -> None:
    found = list(measured(POINTS, most_tokens=512))
    assert len(found) == 8 and rms(found) <= MOST_RMS
    assert all(row in PAGE for row in points_table(found).splitlines())


def test_pairs_that_the_model_tells_apart_are_in_the_right_order() -> None:
    found = pairs(list(measured(VARIANTS, most_tokens=64)))
    assert found.preferred >= 10 and found.right_preferred >= LEAST_RIGHT * found.preferred


@pytest.mark.parametrize("fitted", [True, False])
def test_published_times(fitted: bool) -> None:
    found = list(published(fitted, most_tokens=512, least_tokens=512))
    assert len(found) >= 2 and rms(found) <= MOST_RMS_SM100


def percentages(pattern: str) -> list[float]:
    """Numbers of the page."""
    return [float(one) / 100 for one in re.findall(pattern, PAGE)]
