"""What the expert-parallel kernels compute, in torch: Linear1 of every received row, and the weighted sums of every token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..cases import Case
from ..cases.generators import elements, scales
from ..kernels.moe.halves.layouts.symmetric import first_rows, pool_rows
from ..problem import Problem
from ..reference import Accumulate, Routing, combine, route, scaled_matmul
from ..runtime.ep.buffers import RowActivations


def expert_places(case: Case, rank: int, routing: Routing) -> list[slice]:
    """Rows of each local expert."""
    local = case.problem.experts_per_rank
    rows = [int(routing.counts[rank * local + expert].sum()) for expert in range(local)]
    return [slice(first, first + count) for first, count in zip(first_rows(rows), rows, strict=False)]


def linear1_rows(case: Case, rank: int, accumulate: Accumulate = torch.float64) -> list[torch.Tensor]:
    """Linear1 of the rows of each local expert, BF16, in the order of (rank, token)."""
    moe, weights = case.problem, case.weights[rank]
    slots = route(moe, case.topk_idx).slots
    found = []
    for local in range(moe.experts_per_rank):
        pairs = [one[:, 0].to(case.x[0].device) for one in slots[rank * moe.experts_per_rank + local]]
        x = torch.cat([case.x[r].view(torch.uint8)[tokens] for r, tokens in enumerate(pairs)]).view(case.x[0].dtype)
        sf = torch.cat([case.x_sf[r][tokens] for r, tokens in enumerate(pairs)])
        found.append(scaled_matmul(x, sf, weights.fc1[local], weights.fc1_sf[local], accumulate).bfloat16())
    return found


def combined(case: Case, acts: Sequence[RowActivations], accumulate: Accumulate = torch.float64) -> list[torch.Tensor]:
    """y of every rank: Linear2 of every row rounded to BF16, then `reference.combine` with the top-k weights."""
    moe, routing = case.problem, route(case.problem, case.topk_idx)
    outputs = [torch.zeros(moe.topk, len(idx), moe.hidden, dtype=torch.bfloat16, device=idx.device) for idx in case.topk_idx]
    for rank, (one, weights) in enumerate(zip(acts, case.weights, strict=True)):
        row_scales = one.row_scales
        for local, place in enumerate(expert_places(case, rank, routing)):
            operands = (one.values[place], row_scales[place], weights.fc2[local], weights.fc2_sf[local])
            pairs = routing.slots[rank * moe.experts_per_rank + local]
            rows = scaled_matmul(*operands, accumulate).bfloat16().split([len(some) for some in pairs])
            for output, some, own in zip(outputs, pairs, rows, strict=True):
                output[some[:, 1], some[:, 0]] = own
    return [combine(*one) for one in zip(outputs, case.topk_idx, case.topk_weights, strict=True)]


def draw_rows(problem: Problem, generator: torch.Generator) -> RowActivations:
    """Activations of all rows of a rank's pool: small numbers with powers of two as scales, whose sums with exact weights are exact."""
    shape, form = (pool_rows(problem), problem.intermediate), problem.formats.activations
    return RowActivations.ordered(elements(form, shape, 2, generator), scales(form, (shape[0], form.scales_of(shape[1])), -2, generator))


def draw_activations(case: Case, rank: int) -> RowActivations:
    return draw_rows(case.problem, torch.Generator().manual_seed(rank))
