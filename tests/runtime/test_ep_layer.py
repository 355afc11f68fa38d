"""`EpMoE` on one rank whose kernels run in the simulator, and the same layer on two simulated ranks, against the reference in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.artifact.cache import load_one
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import swiglu
from megamoe_dsl.cases import Case, random_case, random_weights
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.kernel_cases.halves import combined, expert_places, linear1_rows
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import Kept, pool_rows, symmetric_buffer
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import unscaled_weights
from megamoe_dsl.reference import Accumulate, route
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep import layer as ep_layer
from megamoe_dsl.runtime.ep.buffers import Activation, EpBuffers, RowActivations
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.ep.routing import scatter_indices
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.experts import moe as moe_on_one
from megamoe_dsl.runtime.gemm_scales import kernel_scales
from megamoe_dsl.runtime.preparation import halves_kernels
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_gpu import NUM_SMS, SimulatedKernel
from simulated_tables import both_halves

FIELDS = {"block_m": 64, "block_n": 64}


def problem(ranks: int, recipe: str = "fp8xfp8") -> Problem:
    return Problem(256, 128, num_experts=4, topk=2, num_ranks=ranks, max_tokens_per_rank=7, recipe=recipe)


def signs(rows: torch.Tensor) -> torch.Tensor:
    """Of gate: few enough bits for sums that are exact."""
    return rows[:, : rows.shape[1] // 2].sign()


def expected(case: Case, activation: Activation = swiglu, accumulate: Accumulate = "hopper") -> list[torch.Tensor]:
    """y of every rank: Linear1 rounded as a tensor core's sums are, the activation in torch, its quantized result through Linear2."""
    acts, routing = [], route(case.problem, case.topk_idx)
    for rank in range(case.problem.num_ranks):
        rows = torch.zeros(pool_rows(case.problem), 2 * case.problem.intermediate, dtype=torch.bfloat16)
        for place, one in zip(expert_places(case, rank, routing), linear1_rows(case, rank, accumulate), strict=True):
            rows[place] = one
        acts.append(RowActivations.of(activation(rows), case.problem.formats.activations))
    return combined(case, acts, accumulate)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[SimulatedKernel]:
    """In place of a GPU."""
    replaced = {"CudaKernel": SimulatedKernel, "encode_tensor_map": TensorMap.encode}
    replaced["gpu_target"] = lambda device: Target(SM90, NUM_SMS, "simulated")
    for name, one in replaced.items():
        monkeypatch.setattr(ep_layer, name, one)
    monkeypatch.setattr("megamoe_dsl.artifact.store.compile_kernel", artifact)
    SimulatedKernel.tensors = {}
    return SimulatedKernel


def test_a_call_of_the_layer(gpu: type[SimulatedKernel], tmp_path) -> None:
    """Twice, with other numbers of tokens; y to the bit."""
    moe = problem(1)
    symmetric = SymmetricBuffer.allocate(moe, device="cpu", region=symmetric_buffer(moe))
    case = random_case(moe, (7,), 1, mask=0.2, exact=False)
    layer = EpMoE(
        moe, case.weights[0], activation=swiglu, store=ArtifactStore(tmp_path), symmetric=symmetric, dispatch=FIELDS, combine=FIELDS
    )
    target = Target(SM90, NUM_SMS, "simulated")
    assert EpMoE.prepare(moe, dispatch=FIELDS, combine=FIELDS, target=target, store=ArtifactStore(tmp_path)) == 0
    weights = {name: getattr(case.weights[0], name) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")}
    memory = {"sym": layer.memory.sym, "peers": symmetric.peers, "rows": layer.rows, "watchdog": layer.memory.watchdog}
    gpu.tensors = {**weights, **memory, "acts": layer.acts.values, "acts_sf": layer.acts.scales}
    for count in (7, 3):
        few = Case(moe, *([one[0][:count]] for one in (case.x, case.x_sf, case.topk_idx, case.topk_weights)), case.weights, False)
        y = gpu.tensors["y"] = torch.full((count, moe.hidden), torch.nan, dtype=torch.bfloat16)
        assert layer(few.x[0], few.topk_idx[0].int(), few.topk_weights[0], x_sf=few.x_sf[0], out=y) is y
        assert torch.equal(y.view(torch.int16), expected(few)[0].view(torch.int16))
    rows, backwards = layer.memory.view("pair_rows")[:3].clone(), scatter_indices(moe, few.topk_idx[0], -torch.arange(3))
    y.fill_(torch.nan)
    layer(few.x[0], few.topk_idx[0], few.topk_weights[0], x_sf=few.x_sf[0], scatter_indices=backwards, out=y)
    assert not torch.equal(layer.memory.view("pair_rows")[:3], rows)
    assert torch.equal(y.view(torch.int16), expected(few)[0].view(torch.int16))
    activated: list[int] = []
    layer.activation = lambda given: activated.append(len(given)) or swiglu(given)
    one_expert = torch.full_like(few.topk_idx[0], -1).index_fill_(1, torch.tensor(0), 0)
    layer(few.x[0], one_expert, few.topk_weights[0], x_sf=few.x_sf[0], out=y)
    assert activated == [128] and len(layer.rows) > 128  # blocks that are in use, and no others
    launched = len(gpu.launched)
    with pytest.raises(ProblemError, match=r"scatter_indices\[\d, \d\] = \d: must be between 0 and \d: expert \d has so many rows"):
        layer(few.x[0], few.topk_idx[0], few.topk_weights[0], x_sf=few.x_sf[0], scatter_indices=backwards + 3, out=y)
    with pytest.raises(ProblemError, match=r"^topk_weights\.requires_grad = True: must be False, or the call under torch.no_grad"):
        layer(few.x[0], few.topk_idx[0], few.topk_weights[0].clone().requires_grad_(), x_sf=few.x_sf[0], out=y)
    assert len(gpu.launched) == launched


def test_a_call_of_the_layer_on_sm100(gpu: type[SimulatedKernel], tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables, tiles of pairs, and scales in the order of UTCCP; y to the bit, also of a rank that receives no rows."""
    monkeypatch.setattr(ep_layer, "gpu_target", lambda device: Target(SM100, NUM_SMS, "simulated"))
    moe = problem(1, "fp8xfp4")
    symmetric = SymmetricBuffer.allocate(moe, device="cpu", region=symmetric_buffer(moe))
    case = random_case(moe, (7,), 1, mask=0.2)
    layer = EpMoE(moe, case.weights[0], activation=signs, store=ArtifactStore(tmp_path), symmetric=symmetric)
    memory = {"sym": layer.memory.sym, "peers": symmetric.peers, "rows": layer.rows, "watchdog": layer.memory.watchdog}
    weights = {"fc1": case.weights[0].fc1, "fc2": case.weights[0].fc2, **layer.memory.weight_scales}
    gpu.tensors = {**weights, **memory, "acts": layer.acts.values, "acts_sf": layer.acts.scales}
    y = gpu.tensors["y"] = torch.full((7, moe.hidden), torch.nan, dtype=torch.bfloat16)
    layer(case.x[0], case.topk_idx[0], case.topk_weights[0], x_sf=case.x_sf[0], out=y)
    assert torch.equal(y.view(torch.int16), expected(case, signs, torch.float64)[0].view(torch.int16))
    layer(case.x[0], torch.full_like(case.topk_idx[0], -1), case.topk_weights[0], x_sf=case.x_sf[0], out=y)
    assert not y.any()


@pytest.mark.sweep
def test_a_call_of_the_layer_in_bf16(gpu: type[SimulatedKernel], tmp_path) -> None:
    """Tokens and activations as they are: nothing is quantized, and there are no scales; y to the bit."""
    moe = problem(1, "bf16xbf16")
    symmetric = SymmetricBuffer.allocate(moe, device="cpu", region=symmetric_buffer(moe))
    case = random_case(moe, (7,), 1, mask=0.2)
    weights = unscaled_weights(case.weights[0].fc1, case.weights[0].fc2)
    layer = EpMoE(moe, weights, activation=signs, store=ArtifactStore(tmp_path), symmetric=symmetric, dispatch=FIELDS, combine=FIELDS)
    memory = {"sym": layer.memory.sym, "peers": symmetric.peers, "rows": layer.rows, "watchdog": layer.memory.watchdog}
    gpu.tensors = {"fc1": weights.fc1, "fc2": weights.fc2, **memory, "acts": layer.acts.values}
    y = gpu.tensors["y"] = torch.full((7, moe.hidden), torch.nan, dtype=torch.bfloat16)
    layer(case.x[0], case.topk_idx[0], case.topk_weights[0], out=y)
    assert torch.equal(y.view(torch.int16), expected(case, signs, torch.float64)[0].view(torch.int16))


@pytest.mark.parametrize(("activation", "block_n"), [(swiglu, 64), (None, 256)])
def test_a_call_with_gradients(
    gpu: type[SimulatedKernel], tmp_path, monkeypatch: pytest.MonkeyPatch, activation: Activation | None, block_n: int
) -> None:
    """Of one rank, those of `moe`; what cannot have them is named before anything is launched."""
    moe = problem(1, "bf16xbf16")
    case, made = random_case(moe, (7,), 1, mask=0.2, exact=False), {"block_m": 128, "block_n": block_n}
    symmetric = SymmetricBuffer.allocate(moe, device="cpu", region=symmetric_buffer(moe))
    weights = unscaled_weights(case.weights[0].fc1, case.weights[0].fc2)
    options = {"store": ArtifactStore(tmp_path), "symmetric": symmetric, "dispatch": made, "combine": made}
    layer = EpMoE(moe, weights, activation=activation, **options)
    memory = {"sym": layer.memory.sym, "peers": symmetric.peers, "rows": layer.rows, "watchdog": layer.memory.watchdog}
    gpu.tensors = {"fc1": weights.fc1, "fc2": weights.fc2, **memory, "acts": layer.acts.values}

    def point_at(self: EpMoE, combine: SimulatedKernel, y: torch.Tensor) -> None:
        gpu.tensors["y"] = y
        combine.arguments.values.y, combine.arguments.values.num_tokens = y.data_ptr(), len(y)

    own_point: Any = EpMoE.point

    def point(self: EpMoE, kernel: SimulatedKernel, **tensors: torch.Tensor) -> None:
        gpu.tensors.pop("preactivations", None)  # the same memory as gate_up
        gpu.tensors |= tensors
        own_point(self, kernel, **tensors)

    monkeypatch.setattr(EpMoE, "point_at", point_at)
    monkeypatch.setattr(EpMoE, "point", point)
    before = len(gpu.launched)
    ours = case.x[0].requires_grad_(), case.topk_weights[0].requires_grad_(), weights.fc1.requires_grad_(), weights.fc2.requires_grad_()
    theirs = [one.detach().clone().requires_grad_() for one in ours]
    idx = case.topk_idx[0]
    y, wanted = layer(ours[0], idx, ours[1]), moe_on_one(theirs[0], theirs[2], None, theirs[3], None, idx, theirs[1])
    for one in (y, wanted):
        one.float().square().sum().backward()
    assert torch.equal(y, wanted) if activation is None else (y.float() - wanted.float()).norm() < 0.01 * wanted.float().norm()
    for one, other in zip(ours, theirs, strict=True):
        assert (one.grad.float() - other.grad.float()).norm() < 0.02 * other.grad.float().norm()
    target = Target(SM90, NUM_SMS, "simulated")
    dispatch = made if activation else {**made, "gate_up": "activated"}
    kernels, store = halves_kernels(moe, target, dispatch, made, train=True), ArtifactStore(tmp_path)
    assert [one.problem.kind for one in kernels if load_one(store, one) is None] == ["aligned"] * 2  # sums over rows, which the CPU makes
    with torch.no_grad():
        assert activation or torch.equal(layer(case.x[0], idx, case.topk_weights[0]), y)  # by the launch that keeps nothing
    launched = gpu.launched[before:][:5]
    assert [type(one) for one in launched] == [RoutingTablesConfig, *(DispatchGemmConfig, GemmCombineConfig) * 2]
    with pytest.raises(ProblemError, match=r"^main_grads\[1\]"):
        layer(ours[0], idx, ours[1], main_grads=(torch.zeros(weights.fc1.shape), torch.zeros(weights.fc1.shape)))
    with pytest.raises(ProblemError, match=r"^out = .*: must be None where gradients are asked for"):
        layer(ours[0], idx, ours[1], out=y.detach())
    if activation is None:
        return
    layer.activation = lambda rows: rows
    with pytest.raises(ProblemError, match=r"^activation = .*: must be bfloat16 \(\d+, 128\)"):
        layer(ours[0], idx, ours[1])


@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xfp4", "bf16xbf16"])
def test_other_weights_are_those_that_launches_read(recipe: str) -> None:
    """Values and scales of both linears, of which some are made for the kernels."""
    moe = problem(1, recipe)
    first, second = (random_weights(moe, 0, seed) for seed in (0, 1))
    buffers, alone = EpBuffers(moe, first), EpBuffers(moe, second)
    buffers.weights = second
    for name, made in alone.weight_scales.items():
        assert torch.equal(buffers.weight_scales[name], made)
        assert recipe == "bf16xbf16" or not torch.equal(made, kernel_scales(getattr(first, name)))
    target = Target.typical("sm_100a" if recipe == "fp8xfp4" else "sm_90a")
    dispatch, combine = (find_kernel(name).choose(moe, target, 7) for name in ("dispatch_grouped_gemm", "grouped_gemm_combine"))
    read = [buffers.arguments(one, 0, 0, 1) for one in (dispatch, combine)]
    for arguments, name in zip(read, ("fc1", "fc2"), strict=True):
        assert arguments["weights"] == getattr(second, name).data_ptr()
        assert arguments["weights_sf"] == buffers.weight_scales[f"{name}_sf"].data_ptr()


def test_two_simulated_ranks() -> None:
    moe = problem(2)
    case = random_case(moe, (7, 4), 2, mask=0.2, exact=False)
    ep = SimulatedEp(*(artifact(kind(moe, **FIELDS, num_sms=2)) for kind in (DispatchGemmConfig, GemmCombineConfig)), case.weights)
    inputs = [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
    ys, reports = both_halves(ep, inputs, swiglu)
    assert [report.findings for report in reports] == [[], []]
    for y, wanted in zip(ys, expected(case), strict=True):
        assert torch.equal(y.view(torch.int16), wanted.view(torch.int16))


def test_a_buffer_of_other_kernels_is_refused(gpu: type[SimulatedKernel]) -> None:
    moe = problem(1)
    case = random_case(moe, (1,), 1)
    fused, usual = (SymmetricBuffer.allocate(moe, SM90, device="cpu", region=region) for region in (None, symmetric_buffer(moe)))
    with pytest.raises(ProblemError, match=r"symmetric\.num_bytes = "):
        EpMoE(moe, case.weights[0], activation=swiglu, symmetric=fused)
    for halves in ({"dispatch": {**FIELDS, "tail_sms": 1}}, {"combine": {**FIELDS, "interleaved": False}}):  # either needs more memory
        with pytest.raises(ProblemError, match=r"symmetric\.num_bytes = "):
            EpMoE(moe, case.weights[0], activation=swiglu, symmetric=usual, **{"dispatch": FIELDS, "combine": FIELDS, **halves})


def test_layers_that_share_a_buffer_have_the_same_kernels(gpu: type[SimulatedKernel], tmp_path) -> None:
    """Serial scatter would find counters that are not its own."""
    moe, store = problem(1), ArtifactStore(tmp_path)
    case = random_case(moe, (1,), 1)
    options = {"activation": swiglu, "store": store, "dispatch": FIELDS}
    symmetric = SymmetricBuffer.allocate(moe, device="cpu", region=symmetric_buffer(moe, Kept.RESULTS))
    for _ in range(2):
        EpMoE(moe, case.weights[0], symmetric=symmetric, combine=FIELDS, **options)
    with pytest.raises(
        ProblemError, match=r"combine\.interleaved = False: must be True, as on this symmetric buffer before: launches leave"
    ):
        EpMoE(moe, case.weights[0], symmetric=symmetric, combine={**FIELDS, "interleaved": False}, **options)
