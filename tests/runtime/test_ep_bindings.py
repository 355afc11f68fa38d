"""What launches of `EpMoE` are bound to: a rank's own memory, with the rank's number and the caller's limit of waits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import Problem, Target, choose, random_inputs, random_weights
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import Kept, pool_rows, symmetric_buffer
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from megamoe_dsl.runtime.ep import layer as layers
from megamoe_dsl.runtime.ep.buffers import EpBuffers, RowActivations
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.ep.routing import RoutingTables

PROBLEM = Problem(256, 128, 8, 2, 4, 16, recipe="bf16xbf16")
RANK, PEERS, LIMIT_NS = 3, 12345, 77


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 3 of four, whose kernels are not made: what they are bound with is what binding gives."""
    own: Any = SimpleNamespace(problem=PROBLEM, watchdog_ns=LIMIT_NS, memory=EpBuffers(PROBLEM, random_weights(PROBLEM, RANK, 0)))
    own.activates = False
    own.symmetric = SimpleNamespace(rank=RANK, peers=SimpleNamespace(data_ptr=lambda: PEERS))
    own.rows, own.acts, own._nowhere = own.memory.new_rows(), RowActivations.empty(PROBLEM, "cpu"), torch.empty(8, dtype=torch.bfloat16)
    monkeypatch.setattr(layers, "CudaKernel", lambda artifact: SimpleNamespace(arguments=SimpleNamespace(fill=artifact.bound.update)))
    monkeypatch.setattr(layers, "encode_tensor_map", None)
    return own


def bound(layer: Any, config: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    kernel = SimpleNamespace(parameters=lambda config, arguments, encode: arguments)
    EpMoE.bind(layer, SimpleNamespace(config=config, kernel=kernel, bound=found))  # type: ignore[arg-type]
    return found


def test_launches_have_their_ranks_arguments(layer: Any) -> None:
    """A backward pass reads and leaves its rows where the forward pass has its results and operands."""
    target = Target.typical("sm_90a", 4)
    dispatch, combine = (find_kernel(name).choose(PROBLEM, target, 16) for name in ("dispatch_grouped_gemm", "grouped_gemm_combine"))
    tables = RoutingTablesConfig.of(dispatch)
    assert isinstance(dispatch, DispatchGemmConfig) and isinstance(combine, GemmCombineConfig)
    memory = layer.memory
    common = {"sym": memory.sym.data_ptr(), "peers": PEERS, "rank": RANK, "watchdog": memory.watchdog.data_ptr(), "watchdog_ns": LIMIT_NS}
    rows, values, scales = (one.data_ptr() for one in (layer.rows, layer.acts.values, layer.acts.scales))
    fc1, fc2 = memory.weights.fc1.data_ptr(), memory.weights.fc2.data_ptr()
    wanted: dict[Any, dict[str, int]] = {
        tables: {"num_tokens": 0},
        dispatch: {"weights": fc1, "out": rows},
        dispatch.replace(trains=True): {"weights": fc1, "out": rows, "row_weights": 0},
        dispatch.backward: {"weights": fc2, "out": values},
        combine: {"weights": fc2, "acts": values, "acts_sf": scales, "num_tokens": 0},
        combine.backward: {"weights": fc1, "acts": rows, "num_tokens": 0},
    }
    activated = dispatch.replace(gate_up="activated", block_m=128, block_n=256)
    gradient = {"gate_up": 0, "row_weights": 0, "dots": 0}  # a call says where these are
    by_kernels: dict[Any, dict[str, int]] = {
        activated: {"weights": fc1, "out": values},
        activated.replace(trains=True): {"weights": fc1, "out": values, "preactivations": 0, "row_weights": 0},
        activated.backward: {"weights": fc2, "out": rows, "weighted": values, **gradient},
    }
    for layer.activates, launches in ((False, wanted), (True, by_kernels)):
        for config, own in launches.items():
            found = bound(layer, config)
            assert {name: found[name] for name in (*common, *own)} == {**common, **own}, config


@pytest.mark.parametrize("keeps", list(Kept))
def test_memory_is_the_weights_devices(keeps: Kept) -> None:
    """And large enough for what its kernels keep."""
    weights = random_weights(PROBLEM, 0, 0).map(lambda one: one.to("meta"))
    memory = EpBuffers(PROBLEM, weights, keeps=keeps)
    assert memory.sym.device.type == memory.new_rows().device.type == "meta"
    assert len(memory.sym) == symmetric_buffer(PROBLEM, keeps).size
    assert memory.new_rows().shape == (pool_rows(PROBLEM), 256) and memory.new_rows(64).shape == (pool_rows(PROBLEM), 64)


def test_stamps_lie_where_a_rank_s_buffer_does() -> None:
    """Wherever a program's tensors are by default."""
    problem = replace(PROBLEM, recipe="fp8xfp8", num_ranks=1)
    buffers = RankBuffers(choose(problem, Target.typical("sm_90a", 4), 16, trace=True), random_weights(problem, 0, 0))
    with torch.device("meta"):
        assert buffers.trace.device == buffers.maps.device == torch.device("cpu") and buffers.trace.shape[0] == 4


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xfp4", "bf16xbf16"])
def test_a_ranks_tokens_and_tables_go_into_its_buffer(recipe: str) -> None:
    """The first rows of every field that the kernels read."""
    problem = replace(PROBLEM, recipe=recipe, num_ranks=1)
    memory, given = EpBuffers(problem, random_weights(problem, 0, 0)), Inputs(*random_inputs(problem, 0, 5, 1, mask=0.3))
    (tables,) = RoutingTables.of(problem, [given.topk_idx])
    memory.sym.fill_(7)
    memory.store(given, tables)
    for name in ("x", "x_sf", "topk_weights", "topk_idx"):
        if name in memory.region and getattr(given, name).numel():
            assert torch.equal(memory.view(name)[:5].view(torch.uint8), getattr(given, name).view(torch.uint8)), name
            assert (memory.view(name)[5:].view(torch.uint8) == 7).all()
    assert "topk_weights" in memory.region and ("x_sf" in memory.region) == problem.formats.scaled
    for name, wanted in vars(tables).items():
        assert torch.equal(getattr(memory.tables(5), name), wanted) and wanted.any()
    assert [one.stop - one.start for one in memory.expert_slices()] == tables.expert_rows.tolist()
