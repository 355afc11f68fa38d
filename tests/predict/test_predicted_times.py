"""Predicted times beside measured and published ones: those that are cheap.  Those of docs/lab/prediction.md are in bounds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from megamoe_dsl import Target, choose
from megamoe_dsl.presets import preset
from prediction.calibration import calibration_of
from prediction.launch import RankLoad, tiles_of
from prediction.prediction import Subject
from prediction.sm100 import shape_of
from prediction_errors import PACKED, POINTS, VARIANTS, measured, pairs, pairs_table, points_table, profiled, profiled_table, published, rms
from sweep import sample

PAGE = (Path(__file__).parents[2] / "docs" / "lab" / "prediction.md").read_text()
MOST_RMS, MOST_RMS_SM100 = 0.06, 0.10
LEAST_RIGHT = 0.95


def test_points_of_the_readme() -> None:
    found = list(measured(POINTS, most_tokens=512))
    assert len(found) == 8 and rms(found) <= MOST_RMS
    assert all(row in PAGE for row in points_table(found).splitlines())


@pytest.mark.sweep
def test_pairs_of_some_points() -> None:
    """Of 16, 32 and 128 tokens: in the right order, and so are those that the model tells apart.  The sweep has all."""
    found = pairs([one for tokens in (16, 32, 128) for one in measured(VARIANTS, tokens, tokens)])
    assert found.all >= 30 and found.right >= LEAST_RIGHT * found.all
    assert found.preferred >= 10 and found.right_preferred >= LEAST_RIGHT * found.preferred


@sample("True")
@pytest.mark.parametrize("fitted", [True, False])
def test_published_times(fitted: bool) -> None:
    found = list(published(fitted, most_tokens=64, least_tokens=64))
    assert found and rms(found) <= MOST_RMS_SM100 + 0.02


def test_kernels_under_a_profiler() -> None:
    """The model puts them in the right order; what it lacks of the two with runs of 64 bytes is on the page."""
    packed, short, byte = found = list(profiled())
    assert abs(packed.error) < MOST_RMS and packed.model < short.model < byte.model
    assert profiled_table(found) in PAGE


def test_runs_of_bytes_take_their_time() -> None:
    """Stages of 256 channels, whose rows are twice as long, keep HBM busier where weights lie in rows; in tiles they are no better."""
    problem, calibration = preset("flash").problem(64, recipe="mxf4xmxf4"), calibration_of("NVIDIA B200")
    load = RankLoad.uniform(problem, 64)
    alike = replace(calibration, kernel={**calibration.kernel, "hbm_gap": 0.0})
    configs = [choose(problem, Target.typical("sm_100a"), 64, block_k=block_k) for block_k in (128, 256)]
    times = [Subject.of(one, load).predict(calibration).us for one in configs]
    assert abs(times[0] / times[1] - 1) < 0.01
    shapes = [replace(shape_of(one), tiles_weights=False) for one in configs]
    short, long = (Subject(shape, tiles_of(one, load.counts), load) for shape, one in zip(shapes, configs, strict=True))
    gap, none = ([one.launch(each, each.clock) for one in (short, long)] for each in (calibration, alike))
    assert gap[0].us / gap[1].us > 1.02 * none[0].us / none[1].us
    assert [one.run.hbm_bytes for one in gap] == pytest.approx([one.run.hbm_bytes for one in none], rel=0.01)


def test_the_page_is_within_bounds() -> None:
    points, *sm100 = [float(one) / 100 for one in re.findall(r"\brms (\d+\.\d)%", PAGE)]
    assert points <= MOST_RMS and len(sm100) == 2 and max(sm100) <= MOST_RMS_SM100
    rows = [tuple(map(int, one)) for one in re.findall(r"\| (\d+) of (\d+) \| (\d+) of (\d+) \|$", PAGE, re.MULTILINE)]
    right, every, *_ = (sum(column) for column in zip(*rows[:2], strict=True))
    assert len(rows) == 4 and right >= LEAST_RIGHT * every and every > 200
    assert all(right >= LEAST_RIGHT * every for *_, right, every in rows)


@pytest.mark.sweep
def test_pairs_of_all_configurations() -> None:
    """Every configuration that was recorded beside others, at every point; some minutes."""
    found = list(measured(VARIANTS))
    assert pairs(found).right >= LEAST_RIGHT * pairs(found).all
    assert all(row in PAGE for row in pairs_table(found).splitlines())


def test_weights_of_4_bits() -> None:
    """Flash, which their constants were fitted to, and Pro."""
    for record, most in zip(PACKED, (MOST_RMS, MOST_RMS_SM100), strict=True):
        found = list(measured([record], most_tokens=8))
        assert len(found) == 2 and rms(found) <= most


def test_tokens_are_pulled_by_the_warps_that_there_are() -> None:
    """A kernel that decodes has two dispatch warps a CTA, for which there are more tokens each."""
    problem, calibration = preset("flash").problem(512, num_ranks=2, num_experts=64, recipe="fp8xmxfp4"), calibration_of("NVIDIA H200")
    config, load = choose(problem, Target.typical("sm_90a"), 512, block_m=128), RankLoad.uniform(problem, 512)
    two = Subject.of(config, load)
    four = replace(two, dispatch_warps=Subject.of(config.replace(block_m=64), load).dispatch_warps)
    assert (two.dispatch_warps, four.dispatch_warps) == (2, 4)
    assert four.launch(calibration, calibration.clock).pulled < two.launch(calibration, calibration.clock).pulled


def test_packed_tokens_take_less_of_everything() -> None:
    """Half the bytes of tokens, and tensor cores twice as fast, at a clock that their power allows."""
    byte, packed = (preset("flash").problem(512, recipe=recipe) for recipe in ("fp8xfp4", "mxf4xmxf4"))
    load = RankLoad.uniform(byte, 512)
    configs = [choose(one, Target.typical("sm_100a"), 512, block_m=128) for one in (byte, packed)]
    one, other = (Subject.of(config, load).predict(calibration_of("NVIDIA B200")) for config in configs)
    cycles = [found.run.multiplying * found.clock for found in (one, other)]
    assert 0.4 * cycles[0] < cycles[1] < 0.6 * cycles[0]
    assert other.run.l2_bytes < 0.85 * one.run.l2_bytes and other.us < one.us
