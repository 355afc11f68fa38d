"""Traced GEMMs that gather their rows compute the same, and their stamps tell which tile every warp worked on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gather_runs import GATHER_BY_NAME
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.inspect.spans import Span, spans_of, summarize, write_perfetto
from megamoe_dsl.kernel_cases.gemm import Compared
from megamoe_dsl.layouts.records import Activity, Role
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.simulated import simulate_gemm
from moe_layers.trace import with_stamps
from pair_gather_runs import PAIR_GATHER_BY_NAME
from ptx_of import artifact
from sweep import rarely, sample

RUNS = {
    "rows": GATHER_BY_NAME["gather-rows-64-ahead"],
    "columns": GATHER_BY_NAME["gather-bf16-swapped"],
    "gate and up": GATHER_BY_NAME["bf16-gate-first"],
    "pairs": PAIR_GATHER_BY_NAME["gathered-blocked"],
}
LOADS = {Role.TOKEN_LOADER: Activity.LOAD, Role.WEIGHT_LOADER: Activity.LOAD}
WORK = {
    SM90: {**LOADS, Role.MATH: Activity.EPILOGUE},
    SM100: {**LOADS, Role.MMA: Activity.MULTIPLY, Role.EPILOGUE: Activity.EPILOGUE},
}
"""What each role does once with a tile."""


Traced = tuple[str, dict[str, Compared], list[Span]]


@pytest.fixture(scope="module", params=[rarely(name) if name in ("rows", "columns") else name for name in RUNS])
def traced(request: pytest.FixtureRequest) -> Traced:
    """Of a run, launched: what it wrote beside what it had to write, and its spans."""
    run = RUNS[request.param]
    config, case = run.config.replace(trace=True), run.case(exact=True)
    compared, tensors = case.compared(exact=True), with_stamps(case.tensors, config)
    assert not simulate_gemm(artifact(config), tensors).findings
    assert tensors.trace is not None
    return request.param, compared, list(spans_of(tensors.trace))


@sample("pairs")
def test_results_are_the_same(traced: Traced) -> None:
    _, compared, _ = traced
    assert all(((low <= written) & (written <= high)).all() for written, low, high in compared.values())


def test_every_tile_is_stamped_by_every_role(traced: Traced) -> None:
    """Tiles of each role are those of all others, and all warps of a role have as many."""
    name, _, spans = traced
    config = RUNS[name].config
    tiles = {
        role: {(one.sm // config.cluster, one.detail) for one in spans if (one.role, one.activity) == (role, activity)}
        for role, activity in WORK[config.arch].items()
    }
    assert len(tiles[Role.WEIGHT_LOADER]) > 1
    assert all(found == tiles[Role.WEIGHT_LOADER] for found in tiles.values())


def test_a_warps_time_has_no_gaps(traced: Traced, tmp_path: Path) -> None:
    name, _, spans = traced
    ends: dict[tuple[int, int], float] = {}
    for one in spans:
        assert one.start == ends.get((one.sm, one.warp), one.start) <= one.end
        ends[one.sm, one.warp] = one.end
    assert {name.replace(" ", "_").upper() for name in summarize(spans)} == {role.name for role in WORK[RUNS[name].config.arch]}
    write_perfetto(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"load Linear1", "wait tokens Linear1"} <= {one["name"] for one in events}


def test_stamps_need_a_traced_configuration() -> None:
    run = RUNS["rows"]
    with pytest.raises(ProblemError, match="trace = False: must be True of a configuration whose warps leave stamps"):
        with_stamps(run.case(exact=True).tensors, run.config)
    with pytest.raises(ConfigError, match="trace = 2: must be True or False"):
        run.config.replace(trace=2)
