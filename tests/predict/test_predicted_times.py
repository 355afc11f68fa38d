"""Predicted times beside measured and published ones: those that are cheap.  Those of docs/predict.md are in bounds."""

import re
from pathlib import Path

import pytest

from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.predict.launch import RankLoad
from megamoe_dsl.predict.subject import Subject
from megamoe_dsl.presets import preset
from megamoe_dsl.problem import ProblemError
from prediction_errors import POINTS, VARIANTS, measured, pairs, points_table, published, rms

PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
MOST_RMS, MOST_RMS_SM100 = 0.06, 0.10
LEAST_RIGHT = 0.95


def test_points_of_the_readme() -> None:
    found = list(measured(POINTS, most_tokens=512))
    assert len(found) == 8 and rms(found) <= MOST_RMS
    assert all(row in PAGE for row in points_table(found).splitlines())


def test_pairs_that_the_model_tells_apart_are_in_the_right_order() -> None:
    """Of few tokens and of 64; between them the model prefers neither of any pair."""
    found = pairs([*measured(VARIANTS, most_tokens=8), *measured(VARIANTS, most_tokens=64, least_tokens=64)])
    assert found.preferred >= 10 and found.right_preferred >= LEAST_RIGHT * found.preferred


@pytest.mark.parametrize("fitted", [True, False])
def test_published_times(fitted: bool) -> None:
    found = list(published(fitted, most_tokens=64, least_tokens=64))
    assert found and rms(found) <= MOST_RMS_SM100 + 0.02


def test_the_page_is_within_bounds() -> None:
    points, *sm100 = [float(one) / 100 for one in re.findall(r"\brms (\d+\.\d)%", PAGE)]
    assert points <= MOST_RMS and len(sm100) == 2 and max(sm100) <= MOST_RMS_SM100
    told_apart = [tuple(map(int, one)) for one in re.findall(r"\| (\d+) of (\d+) \|$", PAGE, re.MULTILINE)]
    assert len(told_apart) == 2 and all(right >= LEAST_RIGHT * every for right, every in told_apart)


def test_a_recipe_that_nothing_was_fitted_to_is_refused() -> None:
    problem = preset("flash").problem(64, recipe="fp8xmxfp4")
    with pytest.raises(ProblemError, match="recipe = 'fp8xmxfp4': must be one that the model was fitted to: fp8xfp8, fp8xfp4"):
        Subject.of(Sm90Config.choose(problem, 64), RankLoad.uniform(problem, 64))
