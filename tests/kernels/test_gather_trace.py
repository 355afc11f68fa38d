"""Traced GEMMs that gather their rows compute the same, and their stamps tell which tile every warp worked on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gather_runs import GATHER_BY_NAME
from gemm_runs import artifact
from megamoe_dsl.bench.gather.case import GatherCase
from megamoe_dsl.bench.trace import Span, spans_of, summarise, write_perfetto
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.layouts.activity import Activity, Role
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.simulated_gemm import simulate_gemm
from pair_gather_runs import PAIR_GATHER_BY_NAME

RUNS = {"sm_90a": GATHER_BY_NAME["gather-rows-64-ahead"], "sm_100a": PAIR_GATHER_BY_NAME["gathered-blocked"]}
LOADS = {Role.TOKEN_LOADER: Activity.LOAD, Role.WEIGHT_LOADER: Activity.LOAD}
WORK = {
    "sm_90a": {**LOADS, Role.MATH: Activity.EPILOGUE},
    "sm_100a": {**LOADS, Role.MMA: Activity.MULTIPLY, Role.EPILOGUE: Activity.EPILOGUE},
}
"""What each role does once with a tile."""


@pytest.fixture(scope="module", params=list(RUNS))
def traced(request: pytest.FixtureRequest) -> tuple[str, GatherCase, torch.Tensor, list[Span]]:
    """Of an architecture: a launched case, what D had to become, and its spans."""
    run = RUNS[request.param]
    config, case = run.config.replace(trace=True), run.case(exact=True)
    expected = case.reference()
    case = replace(case, tensors=case.tensors.with_stamps(config))
    assert not simulate_gemm(artifact(config), case.tensors).findings
    assert case.tensors.trace is not None
    return request.param, case, expected, list(spans_of(case.tensors.trace))


def test_results_are_the_same(traced: tuple[str, GatherCase, torch.Tensor, list[Span]]) -> None:
    _, case, expected, _ = traced
    assert torch.equal(case.tensors.d, expected)


def test_every_tile_is_stamped_by_every_role(traced: tuple[str, GatherCase, torch.Tensor, list[Span]]) -> None:
    """Tiles of each role are those of all others, and all warps of a role have as many."""
    arch, _, _, spans = traced
    tiles = {
        role: {(one.sm // RUNS[arch].config.cluster, one.detail) for one in spans if (one.role, one.activity) == (role, activity)}
        for role, activity in WORK[arch].items()
    }
    assert len(tiles[Role.WEIGHT_LOADER]) > 1
    assert all(found == tiles[Role.WEIGHT_LOADER] for found in tiles.values())


def test_a_warps_time_has_no_gaps(traced: tuple[str, GatherCase, torch.Tensor, list[Span]], tmp_path: Path) -> None:
    arch, _, _, spans = traced
    ends: dict[tuple[int, int], float] = {}
    for one in spans:
        assert one.start == ends.get((one.sm, one.warp), one.start) <= one.end
        ends[one.sm, one.warp] = one.end
    assert {name.replace(" ", "_").upper() for name in summarise(spans)} == {role.name for role in WORK[arch]}
    write_perfetto(tmp_path / "trace.json", spans)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"load Linear1", "wait tokens Linear1"} <= {one["name"] for one in events}


def test_stamps_need_a_traced_configuration() -> None:
    run = RUNS["sm_90a"]
    with pytest.raises(ProblemError, match="trace = False: must be True of a configuration whose warps leave stamps"):
        run.case(exact=True).tensors.with_stamps(run.config)
    with pytest.raises(ConfigError, match="trace = 2: must be True or False"):
        run.config.replace(trace=2)
