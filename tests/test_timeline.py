"""Timelines of traces that `megamoe bench --trace` wrote."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console

from megamoe_dsl.inspect.spans import Span, spans_of, summarize, write_perfetto
from megamoe_dsl.json_file import FileError
from megamoe_dsl.layouts.records import Activity, Role
from megamoe_dsl.pictures import Bar, TraceFileError, draw_trace, render, to_svg


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


def test_a_role_has_its_activities_in_the_order_of_their_first_begins():
    """Microseconds and spans are of a warp, on average over those of the role."""
    found = summarize(SPANS)
    assert {role: list(activities) for role, activities in found.items()} == {
        "dispatch": ["count", "pull", "clean"],
        "math": ["wait counts", "multiply Linear1", "multiply Linear2", "combine"],
    }
    assert found["math"]["multiply Linear2"] == pytest.approx({"us": (30 + 74) / 3, "spans": 2 / 3, "first": 6.0, "last": 90.0})
    later = [*traced(0, 1, Role.DISPATCH, (Activity.CLEAN, 0, 5.0), (Activity.PULL, 0, 9.0), (Activity.CLEAN, 0, 10.0))]
    assert list(summarize(later)["dispatch"]) == ["clean", "pull"]


def test_what_belongs_to_a_tile_names_its_linear():
    of_tiles = {one.name for one in Activity if Span(0, 0, Role.MATH, one, 1, 0.0, 1.0).name.endswith(" Linear2")}
    assert of_tiles == {"WAIT_TOKENS", "LOAD", "WAIT_STAGE", "MULTIPLY", "WAIT_STORE", "EPILOGUE"}
    assert Span(0, 0, Role.MATH, Activity.EPILOGUE, 6, 0.0, 1.0).name == "epilogue Linear1"


def test_perfetto_has_the_first_four_sms(tmp_path):
    spans = [one for sm in range(6) for one in traced(sm, 7, Role.MATH, (Activity.MULTIPLY, 5, 4.0), (Activity.COMBINE, 0, 6.5))]
    write_perfetto(tmp_path / "trace.json", spans)
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found["traceEvents"] == [
        {"name": name, "ph": "X", "ts": start, "dur": duration, "pid": sm, "tid": "07 math", "args": {"block": block}}
        for sm in range(4)
        for name, start, duration, block in (("multiply Linear2", 0.0, 4.0, 2), ("combine", 4.0, 2.5, 0))
    ]


def test_spans_are_between_stamps():
    """A warp's first stamp names its role, the others what it did until then; 0 ends them."""
    stamps = torch.zeros(2, 2, 4, 2, dtype=torch.int64)
    stamps[1, 0, :3] = torch.tensor([[1000, Role.MATH << 32], [3000, Activity.WAIT_COUNTS], [7500, Activity.MULTIPLY | 3 << 32]])
    stamps[0, 1, :2] = torch.tensor([[2500, Role.DISPATCH << 32], [3500, Activity.COUNT]])
    stamps[0, 1, 3] = torch.tensor([9000, Activity.COUNT])  # behind a stamp that nobody wrote
    assert list(spans_of(stamps)) == [
        Span(0, 1, Role.DISPATCH, Activity.COUNT, 0, 1.5, 2.5),
        Span(1, 0, Role.MATH, Activity.WAIT_COUNTS, 0, 0.0, 2.0),
        Span(1, 0, Role.MATH, Activity.MULTIPLY, 3, 2.0, 6.5),
    ]
    assert list(spans_of(torch.zeros(2, 2, 4, 2, dtype=torch.int64))) == []


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


@pytest.mark.parametrize(("remote", "said"), [(0.0, ", 0.0% of the top-k slots on other ranks;"), (None, ", 32 experts each;")])
def test_the_note_says_which_slots_were_remote_where_that_was_chosen(record, remote, said):
    found = json.loads(record.read_text())
    found["records"][0]["point"]["remote"] = remote
    record.write_text(json.dumps(found))
    assert said in draw_trace(record, tokens=8).note


def test_the_note_says_whose_shape_it_is(record):
    """A preset's, or else what the record calls itself."""
    found = json.loads(record.read_text())
    found["records"][0] |= {"name": "512x256 E8 EP2 M=8", "point": {"preset": None, "tokens": 8, "ranks": 2}}
    record.write_text(json.dumps(found))
    assert ": 512x256 E8, 8 tokens a rank, 2 ranks; rank 0's launch of 100 µs" in draw_trace(record, tokens=8).note
    assert ": flash, 64 tokens a rank, 2 ranks, 32 experts each, 87.5% of" in draw_trace(record, tokens=64).note


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"records": 3}', '{"records": [{}]}', '{"records": []}', '{"traceEvents": [{}]}'])
def test_other_files_are_an_error(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises((TraceFileError, FileError), match=r"other\.json: (not a file that `megamoe|holds no trace|no JSON)"):
        draw_trace(file)


@pytest.mark.parametrize(
    ("launch", "first", "last", "mean"),
    [
        *((0.0, 0.0, 0.0, 0.0), (-100.0, 4.0, 61.0, 30.0), (float("inf"), 4.0, 61.0, 30.0), (float("nan"), 4.0, 61.0, 30.0)),
        *((100.0, -1.0, 61.0, 30.0), (100.0, 61.0, 4.0, 30.0), (100.0, 4.0, 100.5, 30.0), (100.0, float("nan"), 61.0, 30.0)),
        *((100.0, 4.0, 61.0, -1.0), (100.0, 4.0, 61.0, float("inf"))),
    ],
)
def test_times_are_in_the_launch(record, launch, first, last, mean):
    found = json.loads(record.read_text())
    found["records"][1] |= {"launch_us": launch, "trace": {"math": {"multiply": {"us": mean, "first": first, "last": last}}}}
    record.write_text(json.dumps(found))
    with pytest.raises(TraceFileError, match=r"some-trace\.json: not a file .* us between .* are not in a launch of"):
        draw_trace(record, tokens=8)


def test_times_may_be_all_of_the_launch_or_nothing_and_names_are_no_markup(record):
    found = json.loads(record.read_text())
    sums = {"all[/b]": {"us": 50.0, "first": 0.0, "last": 100.0}, "none": {"us": 0.0, "first": 7.0, "last": 7.0}}
    found["records"][0] |= {"launch_us": 100.0, "trace": {"math[/b]": sums}}
    record.write_text(json.dumps(found))
    picture = draw_trace(record, tokens=8)
    (chart,) = picture.charts
    assert [lane.bars for lane in chart.lanes] == [(Bar(0, 100, "other", share=0.5),), (Bar(7, 7, "other", share=1.0),)]
    console = Console(file=StringIO(), width=80)
    console.print(render(picture))
    assert "math[/b]" in console.file.getvalue() and "all[/b]" in console.file.getvalue()


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        ({"tokens": 9}, "--tokens 9"),
        ({"tokens": 0}, "--tokens 0"),
        ({"preset": "pro", "ranks": 2}, "--preset pro --ranks 2"),
        ({"preset": "flash"}, "--preset flash"),
        ({}, "none of --preset, --tokens and --ranks"),
    ],
)
def test_a_choice_of_none_or_several_names_the_points(record, wanted, asked):
    with pytest.raises(TraceFileError, match=f"some-trace.json: must have one point with {asked}; it has flash M=8, flash M=64"):
        draw_trace(record, **wanted)
