"""A point of bench/experts.py from what is tried to its record and its row of a table, with this library's launches made up; no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.timing import Times
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.target import Target
from moe_layers import point, run, sglang_triton, trials
from moe_layers.inputs import draw_weights, result
from moe_layers.others import Sites
from moe_layers.point import ExpertPoint
from moe_layers.report import markdown
from moe_layers.run import Tried, bfloat16, try_point
from sglang_stand_in import wheel

assert wheel  # the fixture
TARGET = Target.typical("sm_90a")
POINT = ExpertPoint("small", 5)


class Ours:
    """The kernels of a layer, by float64; they may leave a token's result out."""

    wrong = False

    def __init__(self, *_: Any) -> None: ...

    def route(self, call: ExpertCall) -> None:
        experts = call.topk_idx.flatten().sort().values
        call.ends.copy_(torch.searchsorted(experts, torch.arange(call.layer.num_experts), right=True))

    def fc1(self, call: ExpertCall) -> None: ...

    def fc2(self, call: ExpertCall) -> None: ...

    def sum(self, call: ExpertCall) -> None: ...

    def __call__(self, call: ExpertCall) -> torch.Tensor:
        return torch.stack([result(call, token) for token in range(call.tokens)]) * (0 if self.wrong else 1)


@pytest.fixture
def tried(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Tried]:
    """What `try_point` finds beside SGLang's layer, whose table has one tile, and torch's, which has no grouped GEMM here."""
    monkeypatch.setitem(point.LAYERS, "small", ExpertLayer(256, 128, 8, 2))
    monkeypatch.setitem(sglang_triton.CONFIGS, "small", ({"BLOCK_SIZE_M": 4, "BLOCK_SIZE_N": 64},))
    monkeypatch.setattr(run, "SteppedExperts", Ours)
    monkeypatch.setattr(run, "top_experts", run.torch_top_experts)
    monkeypatch.setattr(run, "fused_layer", lambda call, store: lambda: Ours()(call))
    monkeypatch.setattr(trials, "graph_of", lambda launch: launch())
    monkeypatch.setattr(torch, "_grouped_mm", None)
    weights = draw_weights(POINT.layer, "cpu")
    as_bf16 = bfloat16(weights.w1, weights.w1_sf), bfloat16(weights.w2, weights.w2_sf)
    return lambda: try_point(POINT, TARGET, ArtifactStore(wheel), weights, as_bf16, Sites(sglang=wheel))


def test_a_point_becomes_a_record_and_a_row(tried: Callable[[], Tried], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "time_graphs", lambda launches, repeats: {name: Times(float(len(name)), 1.0, repeats) for name in launches})
    monkeypatch.setattr(run, "time_host", lambda calls, repeats: {name: Times(repeats, 1.0, 99.0) for name in calls})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(run, "joules_in_turns", lambda ways, us, turns: {name: Times(us[name] * 7e-4, 0.0, turns) for name in ways})
    record = tried().time(15, energy_turns=3)
    assert record["joules"]["ours, chosen"] == {"median": 12 * 7e-4, "low": 0.0, "high": 3}
    assert set(record["joules"]) == {"ours, chosen", "fused", "sglang 4 x 64", "sorting, sglang 4 x 64"}, "the fastest of a library"
    assert record["us"]["route"]["high"] == 15
    assert record["passed"] and record["experts_met"] == len({*tried().inputs.call.topk_idx.flatten().tolist()})
    layers = {"ours, chosen", "fused", "sorting, sglang 4 x 64", "sglang 4 x 64"}
    assert layers <= set(record["errors"]) and all(error < 0.06 for error in record["errors"].values())
    assert {*layers, "sorting, 4 rows", "route", "fc1, chosen", "fc2", "sum", "top_experts", "router", "router, ours"} <= set(record["us"])
    assert set(record["refused"]) == {"torch bf16"} and set(record["host_us"]) == {"moe", "moe, logits", "torch add_"}
    assert record["rows"] == {"tokens": 5, "packed": 10, "blocked": record["experts_met"] * 128}
    (heading, _, row), (others, *_), (routed, *_), (fused, *_) = [table.splitlines() for table in markdown([record]).split("\n\n")]
    assert (
        "SGLang's Triton, sorting too" in others
        and "torch" not in heading + routed
        and "| fused |" in fused
        and row.startswith("| 5 | 12.0 |")
        and "| J | W |" in heading
    )


def test_the_fused_layer_and_the_one_from_logits_compute_the_call(tried: Callable[[], Tried]) -> None:
    """On CPU tensors: the fused kernel's configuration is of one rank with all experts."""
    call, layer = tried().inputs.call, POINT.layer
    problem = run.fused_problem(layer, POINT.tokens)
    assert (problem.num_ranks, problem.experts_per_rank, problem.recipe) == (1, layer.num_experts, layer.recipe)
    router = torch.zeros(layer.num_experts, layer.hidden).bfloat16()
    router[:, 0] = torch.arange(layer.num_experts)
    first, second = run.routed_layer(call, router), run.routed_layer(call, -router)
    assert first.shape == call.x.shape and not torch.equal(first, second)


def test_a_wrong_result_is_said_before_anything_is_timed(tried: Callable[[], Tried], monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried().outcome["passed"]
    monkeypatch.setattr(Ours, "wrong", True)
    outcome = tried().outcome
    assert outcome["point"] == "small:5" and not outcome["passed"] and outcome["errors"]["ours, chosen"] == 1.0
