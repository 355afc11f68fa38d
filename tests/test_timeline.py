"""Timelines: of a launch on paper, and of traces that `megamoe bench --trace` wrote."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl.inspect.spans import Span, summarize, write_perfetto
from megamoe_dsl.layouts.activity import Activity, Role
from megamoe_dsl.pictures import TraceFileError, draw_trace, to_svg
from megamoe_dsl.pictures.schedule import in_turn, k_blocks, workers
from megamoe_dsl.pictures.timeline import DISPATCH, PaperLaunch, draw_timeline, pull_times, rows_of
from megamoe_dsl.schedule import FC1
from megamoe_dsl.testing import configs_sm90, configs_sm100, problems, token_counts

SMALL = problems(max_hidden=1024, max_intermediate=512, max_experts_per_rank=6)
ANY = st.one_of(configs_sm100(SMALL, max_sms=12), configs_sm90(SMALL, max_sms=6))


@st.composite
def launches(draw):
    config = draw(ANY)
    counts = draw(token_counts(config.problem.experts_per_rank, config.block_m))
    return PaperLaunch.of(config, counts, draw(st.integers(0, 64)))


def place(block):
    return block.phase, block.expert, block.m_block, block.n_block


# --- on paper
@settings(max_examples=60)
@given(launch=launches())
def test_every_tile_runs_once_for_its_k_blocks(launch):
    run = [tile for worker in workers(launch.config) for tile in launch.of_worker(worker)]
    planned = [place(block) for worker in workers(launch.config) for block in in_turn(launch.config, launch.counts, worker)]
    assert sorted(place(tile.block) for tile in run) == sorted(planned)
    assert all(tile.end - tile.start == pytest.approx(k_blocks(launch.config, tile.block)) for tile in run)


@settings(max_examples=60)
@given(launch=launches())
def test_tiles_wait_for_what_they_read(launch):
    run = [tile for worker in workers(launch.config) for tile in launch.of_worker(worker)]
    pulled, finished = pull_times(launch.config, launch.counts), {}
    for tile in run:
        if tile.block.phase == FC1:
            assert tile.start >= pulled[tile.block.pool_block] >= DISPATCH
            finished.setdefault(tile.block.pool_block, []).append(tile.end)
    for tile in run:
        assert tile.end <= launch.combine
        if tile.block.phase != FC1:
            ends = finished[tile.block.pool_block]
            assert len(ends) == launch.config.fc1_n_blocks and tile.start >= max(ends)
    for worker in workers(launch.config):
        tiles = launch.of_worker(worker)
        assert all(left.end <= right.start for left, right in pairwise(tiles))
        assert launch.combine <= launch.combine_end(worker) and launch.pull_end(worker) >= DISPATCH


@settings(max_examples=30)
@given(config=ANY, data=st.data())
def test_no_sm_is_free_while_tiles_are_left(config, data):
    """Tiles are handed out at run time: when a worker ends its last tile, every other one has started its own last turn, or has nothing
    left to start either."""
    counts = data.draw(token_counts(config.problem.experts_per_rank, config.block_m))
    launch = PaperLaunch.of(config, counts, 1)
    busy = [tiles for worker in workers(config) if (tiles := launch.of_worker(worker))]
    free = [launch.tiles[key][-2].end if len(launch.tiles[key]) > 1 else DISPATCH for key in launch.tiles]
    assert all(tiles[-1].end >= max(free) for tiles in busy) or not busy


@given(rows=st.integers(0, 5000), config=ANY)
def test_sms_share_the_rows(rows, config):
    shares = [rows_of(config, rows, sm) for sm in range(config.num_sms)]
    assert sum(shares) == rows and max(shares) - min(shares) <= 4


@settings(max_examples=30)
@given(config=ANY)
def test_a_lane_is_without_gaps_or_overlaps(config):
    picture = draw_timeline(config, min(config.problem.max_tokens_per_rank, 32))
    (chart,) = picture.charts
    assert "not measured" in picture.note and f"of {len(workers(config))} " in picture.note
    for lane in chart.lanes:
        assert all(left.end == right.start for left, right in pairwise(lane.bars))
    kinds = [[bar.kind for bar in lane.bars] for lane in chart.lanes if lane.name == "tiles"]
    assert all("combine" not in kind[:-1] for kind in kinds)


# --- measured
def traced(sm, warp, role, *activities):
    """Spans one after another: (activity, detail, end)."""
    ends = [0.0, *(end for *_, end in activities)]
    return [Span(sm, warp, role, what, detail, start, end) for (what, detail, end), start in zip(activities, ends, strict=False)]


SPANS = [
    *traced(0, 0, Role.DISPATCH, (Activity.COUNT, 0, 2.0), (Activity.PULL, 0, 10.0), (Activity.CLEAN, 0, 11.0)),
    *traced(0, 4, Role.MATH, (Activity.WAIT_COUNTS, 0, 4.0), (Activity.MULTIPLY, 0, 60.0), (Activity.MULTIPLY, 1, 90.0)),
    *traced(0, 5, Role.MATH, (Activity.WAIT_COUNTS, 0, 4.0), (Activity.MULTIPLY, 0, 61.0), (Activity.COMBINE, 1, 100.0)),
    *traced(1, 4, Role.MATH, (Activity.WAIT_COUNTS, 0, 6.0), (Activity.MULTIPLY, 1, 80.0)),
]


@pytest.fixture
def record(tmp_path):
    """A file as `bench --trace` writes it, with two points."""
    points = [{"preset": "flash", "tokens": tokens, "ranks": 2, "experts_per_rank": 32, "remote": 0.875} for tokens in (8, 64)]
    records = [{"name": f"flash M={p['tokens']}", "point": p, "trace": summarize(SPANS), "launch_us": 100.0} for p in points]
    file = tmp_path / "some-trace.json"
    file.write_text(json.dumps({"gpu": "NVIDIA H200", "date": "2026-11-22 00:20:58 UTC", "records": records}))
    return file


def test_a_record_is_drawn_by_role(record):
    picture = draw_trace(record, preset="flash", tokens=64)
    (chart,) = picture.charts
    lanes = {(lane.group, lane.name): lane for lane in chart.lanes}
    assert chart.extent == 100 and [*dict.fromkeys(group for group, _ in lanes)] == ["dispatch", "math"]
    (bar,) = lanes["math", "multiply Linear1"].bars
    assert (bar.kind, bar.start, bar.end) == ("Linear1", 4, 61)
    assert bar.share == pytest.approx((56 + 57) / 3 / 57) and lanes["math", "multiply Linear1"].details == ("37.7",)
    assert lanes["dispatch", "pull"].bars[0].kind == "pull" and lanes["math", "wait counts"].bars[0].kind == "wait"
    for words in ("Measured on NVIDIA H200, 2026-11-22", "flash, 64 tokens a rank, 2 ranks", "87.5% of", "some-trace"):
        assert words in picture.note
    assert "multiply Linear1" in to_svg(picture)


def test_spans_are_drawn_by_sm_and_role(tmp_path):
    file = tmp_path / "trace.json"
    write_perfetto(file, SPANS)
    picture = draw_trace(file)
    (chart,) = picture.charts
    assert [(lane.group, lane.name) for lane in chart.lanes] == [("SM 0", "dispatch"), ("SM 0", "math"), ("SM 1", "math")]
    assert [(bar.kind, bar.end) for bar in chart.lanes[1].bars] == [("wait", 4), ("Linear1", 60), ("Linear2", 90)]
    assert "Measured" in picture.note and "of 100 µs" in picture.note


def test_slivers_are_drawn_as_one(tmp_path):
    many = traced(0, 0, Role.MATH, *((Activity.MULTIPLY, 0, 0.01 * (i + 1)) for i in range(10000)))
    write_perfetto(tmp_path / "trace.json", many)
    (lane,) = draw_trace(tmp_path / "trace.json").charts[0].lanes
    assert [(bar.start, bar.end) for bar in lane.bars] == [(0, pytest.approx(100))]


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"records": 3}', '{"records": [{}]}', '{"records": []}', '{"traceEvents": [{}]}'])
def test_other_files_are_an_error(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(TraceFileError, match=r"other\.json: (not a file that `megamoe bench --trace` wrote|holds no trace)"):
        draw_trace(file)


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        ({"tokens": 9}, "--tokens 9"),
        ({"preset": "pro", "ranks": 2}, "--preset pro --ranks 2"),
        ({"preset": "flash"}, "--preset flash"),
        ({}, "none of --preset, --tokens and --ranks"),
    ],
)
def test_a_choice_of_none_or_several_names_the_points(record, wanted, asked):
    with pytest.raises(TraceFileError, match=f"some-trace.json: must have one point with {asked}; it has flash M=8, flash M=64"):
        draw_trace(record, **wanted)
