"""What the expert-parallel kernels compute, in torch: Linear1 of every received row, and the weighted sums of every token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..cases import Case
from ..kernels.moe.halves.layouts.symmetric import first_rows, pool_rows
from ..problem import Problem
from ..quant import MICRO_SCALING, encode_ue8m0
from ..recipe import F32
from ..reference import Accumulate, Routing, route, scaled_matmul
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
    """y of every rank: Linear2 of every row rounded to BF16, then for each slot in ascending order a fused multiplication and addition in
    FP32, rounded to BF16 once."""
    moe, routing = case.problem, route(case.problem, case.topk_idx)
    results: dict[tuple[int, int, int], torch.Tensor] = {}
    for rank, (one, weights) in enumerate(zip(acts, case.weights, strict=True)):
        scales = one.row_scales
        for local, place in enumerate(expert_places(case, rank, routing)):
            operands = (one.values[place], scales[place], weights.fc2[local], weights.fc2_sf[local])
            rows = scaled_matmul(*operands, accumulate).bfloat16()
            pairs = routing.slots[rank * moe.experts_per_rank + local]
            sources = [(source, token, slot) for source, some in enumerate(pairs) for token, slot in some.tolist()]
            results.update(zip(sources, rows, strict=True))
    ys = []
    for rank, weights_of_slots in enumerate(case.topk_weights):
        y = torch.zeros(len(weights_of_slots), moe.hidden, device=weights_of_slots.device)
        for token, slot in (case.topk_idx[rank] >= 0).nonzero().tolist():
            product = results[rank, token, slot].double() * weights_of_slots[token, slot].double()
            y[token] = (product + y[token].double()).float()
        ys.append(y.bfloat16())
    return ys


def draw_activations(case: Case, rank: int) -> RowActivations:
    return draw_rows(case.problem, torch.Generator().manual_seed(rank))


def draw_rows(problem: Problem, generator: torch.Generator) -> RowActivations:
    """Small integers, with scales that are powers of two where there are any, of all rows of the pool."""
    shape, form = (pool_rows(problem), problem.intermediate), problem.formats.activations
    values = torch.randint(-2, 3, shape, generator=generator).float()
    if form.scale is None:
        return RowActivations.of(values.bfloat16(), form)
    scales = torch.exp2(torch.randint(-2, 2, (shape[0], form.scales_of(shape[1])), generator=generator).float())
    if form.scale == F32:
        return RowActivations.ordered(values.to(torch.float8_e4m3fn), scales)
    return RowActivations.ordered(MICRO_SCALING[form.element].encode(values), encode_ue8m0(scales))
