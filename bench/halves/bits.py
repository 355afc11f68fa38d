"""Bits of the expert-parallel kernels on small cases, those of the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.ep import swiglu
from megamoe_dsl.bench.point import FP8
from megamoe_dsl.cases import random_case
from megamoe_dsl.kernel_cases.halves import combined, draw_activations, expert_places, linear1_rows
from megamoe_dsl.kernels.moe.halves.config import HALVES
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference import route
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep.layer import EpMoE

SMALL = Problem(hidden=512, intermediate=256, num_experts=8, topk=3, num_ranks=2, max_tokens_per_rank=40, recipe=FP8)
BATCHES = ((40, 23), (0, 40), (3, 2), (40, 40))
LAUNCHES = 200
BITS = {
    "bits": HALVES,
    "bits without pairs": ("dispatch cluster=1", "combine cluster=1"),
    "bits of a gather": ("dispatch token_saving=off", "combine scatter=off"),
    "bits of rows that are gathered": ("dispatch rows=gathered", "combine"),
    "bits with tail SMs": ("dispatch tail_sms=8", "combine cluster=1"),
    "bits of results that warps send": ("dispatch", "combine interleaved=off token_blocks=2"),
}
"""What small cases are computed with."""


@dataclass(frozen=True)
class BitsJob:
    """One of `BITS`, by name."""

    name: str


def check_bits(store: ArtifactStore, small: Problem, dispatch: dict[str, Any], combine: dict[str, Any]) -> dict[str, Any]:
    """Launches on small exact cases whose rows and y have the reference's bits: how many elements there were, and how many differ."""
    elements, unequal, rank = 0, 0, dist.get_rank()
    for number, tokens in enumerate(BATCHES):
        case = random_case(small, tokens, number, mask=0.2, skew=number % 2 == 1)
        own = case.to("cuda").weights[rank]
        layer = EpMoE(small, own, activation=swiglu, store=store, dispatch=dispatch, combine=combine)
        acts = [draw_activations(case, other) for other in range(small.num_ranks)]
        rows, wanted = linear1_rows(case, rank), combined(case, acts)[rank]
        inputs = Inputs(*(one[rank].cuda() for one in (case.x, case.x_sf, case.topk_idx, case.topk_weights)))
        y = torch.empty(tokens[rank], small.hidden, dtype=torch.bfloat16, device="cuda")
        for _ in range(LAUNCHES // len(BATCHES)):
            layer.route(inputs)
            layer.rows.fill_(float("nan"))
            layer.launch_dispatch()
            layer.acts.values.copy_(acts[rank].values)
            layer.acts.scales.copy_(acts[rank].scales)
            y.fill_(float("nan"))
            layer.launch_combine(y)
            layer.synchronize()
            found = layer.rows.cpu()
            places = expert_places(case, rank, route(small, case.topk_idx))
            pairs = [*((found[place], one) for place, one in zip(places, rows, strict=True)), (y.cpu(), wanted)]
            elements += sum(one.numel() for _, one in pairs)
            unequal += sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in pairs)
        layer.symmetric.close()
    counted = torch.tensor([elements, unequal], device="cuda")
    dist.all_reduce(counted)
    return {"elements": int(counted[0]), "unequal": int(counted[1]), "launches": LAUNCHES}
