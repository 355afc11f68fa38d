"""Shared experts in the same launch, simulated on two ranks: `pre_dispatch` adds their slots, the fused kernel takes them as any others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mega_moe_runs import problem

from megamoe_dsl.arch import ARCHES
from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.quant import quantize_e4m3, quantize_e4m3_f32
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.shared_experts import SharedExperts
from megamoe_dsl.target import Target
from ptx_of import artifact
from shared_routing import with_shared
from simulated_layer import Bf16Inputs, SimulatedLayer
from sweep import rarely, sample
from violations import violations

TOKENS = (5, 3)
QUANTIZE = {"sm_100a": quantize_e4m3, "sm_90a": quantize_e4m3_f32}


@sample("sm_100a-2")
@pytest.mark.parametrize(("arch", "count"), [("sm_90a", 1), rarely("sm_90a", 2), ("sm_100a", 2), rarely("sm_100a", 1)])
def test_y_is_that_of_the_reference_with_their_slots(arch: str, count: int) -> None:
    """Two tokens name experts that are none, one masks a slot: shared experts take them all the same."""
    family = find_kernel("mega_moe")
    shared = SharedExperts(problem(8, topk=2, recipe=family.recipes[arch][0]), count)
    target = Target(ARCHES[arch], 4)
    case = random_case(shared.whole, TOKENS, 0, exact=False)
    moe_layer = SimulatedMoE(artifact(family.choose(shared.whole, target, 8)), case.weights)
    layer = SimulatedLayer(moe_layer, artifact(PreDispatchConfig(shared.whole, 2, arch, shared=count)))
    routed = random_case(shared.routed, TOKENS, 1, exact=False)
    routed.topk_idx[0][0, 0], routed.topk_idx[0][1, 1], routed.topk_idx[1][2, 1] = shared.routed.num_experts, 1 << 32, -1
    x = [torch.randn(n, shared.routed.hidden, generator=torch.Generator().manual_seed(n)).bfloat16() for n in TOKENS]
    y, report = layer([Bf16Inputs(*one) for one in zip(x, routed.topk_idx, routed.topk_weights, strict=True)])
    assert [str(finding) for finding in report.findings] == []
    routing = [with_shared(shared, rank, *one) for rank, one in enumerate(zip(routed.topk_idx, routed.topk_weights, strict=True))]
    values, scales = zip(*map(QUANTIZE[arch], x), strict=True)
    want = replace(case, x=list(values), x_sf=list(scales), topk_idx=[one for one, _ in routing], topk_weights=[one for _, one in routing])
    assert [one.tolist() for one in violations(y, want.reference().y, want.bound())] == [[], []]
    without = replace(want, topk_weights=[weights * (weights != 1) for weights in want.topk_weights])
    assert all(len(one) for one in violations(y, without.reference().y, want.bound()))
