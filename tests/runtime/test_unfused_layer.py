"""`MegaMoE(fused=False)` on a simulated GPU: the stages one after another, on one memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megamoe_dsl import choose
from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import random_case
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.kernels.moe.unfused.config import StageConfig
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime import layer as layer_module
from megamoe_dsl.runtime.buffers import RankBuffers
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.rank_kernel import RankKernel, buffers_of
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from simulated_gpu import NUM_SMS, SimulatedKernel, simulated_gpu, visible
from sweep import rarely

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=32, recipe="fp8xfp8")
TOKENS = 5


@pytest.fixture
def gpu() -> Iterator[type[SimulatedKernel]]:
    with pytest.MonkeyPatch.context() as patch, simulated_gpu(patch) as kernel:
        yield kernel


@pytest.mark.parametrize(("arch", "recipe"), [(SM90, "fp8xfp8"), rarely(SM100, "mxf4xmxf4")], ids=str)
def test_every_stage_is_launched_and_y_has_the_references_bits(
    arch: Arch, recipe: str, gpu: type[SimulatedKernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_module, "gpu_target", lambda device: Target(arch, NUM_SMS, "simulated"))
    problem = replace(PROBLEM, recipe=recipe)
    case = random_case(problem, [TOKENS], 0, mask=0.2)
    store = ArtifactStore(tmp_path)
    layer = MegaMoE(
        problem,
        case.weights[0],
        store=store,
        symmetric=SymmetricBuffer.allocate(problem, arch, device="cpu"),
        bf16_inputs=False,
        fused=False,
    )
    y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
    given = {"x": case.x[0], "x_sf": case.x_sf[0], "topk_idx": case.topk_idx[0], "topk_weights": case.topk_weights[0]}
    gpu.tensors = visible(layer, y=y, **given)
    layer(**given, out=y)
    assert torch.equal(y, case.reference().y[0])
    launched = [config for config in gpu.launched if isinstance(config, StageConfig)]
    assert [kernel_of(config).name for config in launched] == [stage.name for stage in STAGES]
    (kernel,) = {id(one): one for one in layer.kernels.values()}.values()
    assert isinstance(kernel, RankKernel)
    assert len({one.results.data_ptr() for one in kernel.stages}) == 1 and len(kernel.buffers.results)


def test_another_capacity_has_results_of_its_own() -> None:
    (first, *_), larger = (stage_configs(choose(replace(PROBLEM, max_tokens_per_rank=most), Target(SM90, 4), most)) for most in (32, 4096))
    case = random_case(PROBLEM, [TOKENS], 0)
    buffers = RankBuffers(first, case.weights[0])
    kept, grown = (buffers.rebound(one, buffers.sym).results for one in (first, larger[0]))
    assert kept is buffers.results and len(grown) > len(kept) > 0
    symmetric = SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu")
    moved = buffers_of(first, symmetric, buffers, TensorMap.encode)
    assert moved.watchdog is symmetric.watchdog and moved.sym is symmetric.sym
    assert buffers.rebound(first, buffers.sym).watchdog is buffers.watchdog


def test_a_traced_kernel_has_stamps_of_its_own() -> None:
    fused = choose(PROBLEM, Target(SM90, 4), TOKENS)
    buffers = RankBuffers(fused, random_case(PROBLEM, [TOKENS], 0).weights[0])
    assert not buffers.trace.numel() and buffers.rebound(replace(fused, trace=True), buffers.sym).trace.numel()
