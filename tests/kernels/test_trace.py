"""A traced kernel computes the same, and its stamps tell what every warp did."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from mega_moe_runs import Layer
from sm90_runs import config, hopper_case, problem, prove

from megamoe_dsl.bench.results import trace_row
from megamoe_dsl.cases import Case
from megamoe_dsl.inspect.spans import Span, spans_of, summarize, write_perfetto
from megamoe_dsl.layouts.records import CAPACITY, Activity, Role, trace_buffer
from megamoe_dsl.schedule.fused_moe import FusedMoeOrder
from sweep import rarely

PULLS, LOADS = {Activity.COUNT, Activity.WAIT_COUNTS, Activity.PULL, Activity.CLEAN}, {Activity.WAIT_COUNTS, Activity.LOAD}


@pytest.fixture(scope="module", params=[rarely(16), 128], ids=["columns", "rows"])
def traced(request: pytest.FixtureRequest) -> tuple[Layer, Case]:
    """Two launches on the same buffers, the second on other data: the stamps are its own."""
    kernel = config(problem(20, intermediate=256), num_sms=3, block_m=request.param, lookahead=2, trace=True)
    return prove(kernel, [(20, 7), (9, 20)]), hopper_case(kernel.problem, (9, 20), 1)


def test_roles_stamp_the_tiles_dealt_to_their_sm(traced: tuple[Layer, Case]) -> None:
    """Which SM has which is the deal's (test_sm90_deal.py): here every tile once, and all warps of the SM have stamped it."""
    layer, case = traced
    kernel, counts = layer.moe.artifact.config, case_counts(case)
    for rank, buffers in enumerate(layer.moe.ranks):
        spans = list(spans_of(buffers.trace))
        blocks = [b for sm in range(kernel.num_sms) for b in FusedMoeOrder.blocks(kernel, counts[rank], sm)]
        tiles = Counter(2 * (b.pool_block * 256 + b.n_block) + b.phase for b in blocks)
        for activity in (Activity.WAIT_STAGE, Activity.MULTIPLY, Activity.WAIT_STORE, Activity.EPILOGUE, Activity.LOAD):
            dynamic_schedule: Counter[int] = Counter()
            for sm in range(kernel.num_sms):
                warps: dict[int, list[int]] = {}
                for span in spans:
                    if (span.sm, span.activity) == (sm, activity):
                        warps.setdefault(span.warp, []).append(span.detail)
                first, *others = warps.values()
                assert len(warps) == (2 if activity == Activity.LOAD else 8) and all(details == first for details in others)
                dynamic_schedule.update(first)
            assert dynamic_schedule == tiles


def case_counts(case: Case) -> list[list[int]]:
    """Tokens of every rank's local experts."""
    local = case.problem.experts_per_rank
    chosen = Counter(int(e) for idx in case.topk_idx for e in idx.flatten() if e >= 0)
    return [[chosen[rank * local + i] for i in range(local)] for rank in range(case.problem.num_ranks)]


def test_a_warps_time_has_no_gaps(traced: tuple[Layer, Case]) -> None:
    for buffers in traced[0].moe.ranks:
        warps: dict[tuple[int, int], list[Span]] = {}
        for span in spans_of(buffers.trace):
            warps.setdefault((span.sm, span.warp), []).append(span)
        assert Counter(one[0].role for one in warps.values()) == {
            role: 3 * count for role, count in ((Role.DISPATCH, 4), (Role.TOKEN_LOADER, 1), (Role.WEIGHT_LOADER, 1), (Role.MATH, 8))
        }
        for mine in warps.values():
            assert all(a.end == b.start for a, b in pairwise(mine)) and all(one.start <= one.end for one in mine)
            activities = {one.activity for one in mine}
            assert activities >= (PULLS if mine[0].role == Role.DISPATCH else LOADS if mine[0].role != Role.MATH else {Activity.COMBINE})


def stamps_of(*rows: tuple[int, int, int, int, int]) -> torch.Tensor:
    """(sm, warp, nanoseconds, activity, detail), in order of time, as a trace of two CTAs."""
    stamps = torch.zeros(trace_buffer(2, 16)["stamps"].field.shape, dtype=torch.int64)
    used: Counter[tuple[int, int]] = Counter()
    for sm, warp, time, activity, detail in rows:
        stamps[sm, warp, used[sm, warp]] = torch.tensor([time, detail << 32 | activity])
        used[sm, warp] += 1
    return stamps


def test_summary_and_perfetto_file(tmp_path: Path) -> None:
    begin, multiply, epilogue = (int(one) for one in (Activity.START, Activity.MULTIPLY, Activity.EPILOGUE))
    stamps = stamps_of(
        *((0, 8, 1000, begin, int(Role.MATH)), (0, 8, 3000, multiply, 2), (0, 8, 3500, epilogue, 2), (0, 8, 7500, multiply, 5)),
        *((1, 8, 2000, begin, int(Role.MATH)), (1, 8, 4000, multiply, 4)),
    )
    spans = list(spans_of(stamps))
    assert [(one.name, one.start, one.end) for one in spans if one.sm == 1] == [("multiply Linear1", 1.0, 3.0)]
    math = summarize(spans)["math"]
    assert math["multiply Linear1"] == {"us": 2.0, "spans": 1.0, "first": 0.0, "last": 3.0}
    assert math["multiply Linear2"] == {"us": 2.0, "spans": 0.5, "first": 2.5, "last": 6.5}
    write_perfetto(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(spans) and events[0] == {
        **{"name": "multiply Linear1", "ph": "X", "ts": 0.0, "dur": 2.0, "pid": 0, "tid": "08 math"},
        "args": {"block": 1},
    }
    text = trace_row({"name": "flash EP1 M=8", "launch_us": 6.5, "trace": {"math": math}})
    assert "flash EP1 M=8: 6.5 us" in text and "multiply Linear2           2.0  0.308    0.5    2.5    6.5" in text


def test_no_stamps_no_spans() -> None:
    assert list(spans_of(stamps_of())) == [] and CAPACITY > 1000
