"""Runs of the unfused layer for tests, beside the fused kernel of the same configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mega_moe_runs import Layer, inputs, received

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.runtime.simulated import SimulatedMoE
from ptx_of import artifact


def stages_of(fused: MegaMoeConfig, num_stages: int = 0) -> list[Artifact]:
    """Compiled, in the order of their launches; rings of so many stages, or the deepest."""
    configs = stage_configs(fused)
    return [artifact(one.replace(num_stages=num_stages) if one.multiplies else one) for one in configs]


def unfused_layer(stages: Sequence[Artifact], case: Case, **options: Any) -> Layer:
    """Ranks with the weights of `case`; `options` as `SimulatedMoE`."""
    moe = SimulatedMoE(stages, case.weights, **options)
    return Layer(moe, [[0] * case.problem.experts_per_rank for _ in moe.ranks])


def run(layer: Layer, case: Case, seed: int) -> list[torch.Tensor]:
    """y of a launch whose buffers hold NaN wherever they may; no finding, no warning, and a workspace that is ready for the next one."""
    layer.moe.load_weights(case.weights)
    layer.poison()
    layer.moe.simulator.seed = seed
    y, report = layer.moe(inputs(case))
    for rank, counts in enumerate(received(case)):
        layer.received[rank] = [a + b for a, b in zip(layer.received[rank], counts, strict=True)]
    unexpected = [text for text in report.warnings if "tcgen05.ld of uninitialized TMEM" not in text]
    assert [str(finding) for finding in report.findings] == [] and unexpected == []
    layer.check_workspace()
    return y


def prove_equal(fused: MegaMoeConfig, cases: Sequence[Case]) -> None:
    """One launch of either for each case, on the same buffers: every element of y has the same bits, and there are some."""
    one = Layer.of(artifact(fused), cases[0])
    other = unfused_layer(stages_of(fused), cases[0])
    elements = 0
    for seed, case in enumerate(cases):
        for a, b in zip(run(one, case, seed), run(other, case, seed), strict=True):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16))
            elements += a.numel()
    assert elements


def prove_turns(kernel: MegaMoeConfig, case: Case) -> None:
    """An unfused call, a fused and an unfused one on one buffer: counters of the workspace stand after each as the next expects."""
    unfused = unfused_layer(stages_of(kernel), case)
    unfused.check(case)
    fused = Layer.of(kernel, case)
    fused.received = unfused.received
    for new, old in zip(fused.moe.ranks, unfused.moe.ranks, strict=True):
        new.sym, new.stats = old.sym, old.stats
    fused.moe.peers = unfused.moe.peers
    fused.check(case)
    unfused.check(case)
    assert int(unfused.moe.ranks[0].view("launch_epoch")) == 3
