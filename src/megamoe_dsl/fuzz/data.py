"""Inputs and weights of a fuzzed call."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from ..cases import Case, random_case, random_inputs, random_routing, random_weights
from ..problem import Problem
from ..quant import ExpertWeights
from .trial import EXACT, ROUTINGS, FuzzedCall

BINADES = 12
"""Heavy-tailed scales are moved by up to so many powers of two either way."""
DOWN = 20
"""Scales of subnormal codes are so many powers of two smaller."""
SIGNS = {torch.float8_e4m3fn: 0x80, torch.uint8: 0x88}
SUBNORMAL = {torch.float8_e4m3fn: 0x87, torch.uint8: 0x99}
"""Bits of a byte of codes, E4M3 or two E2M1: of the signs, and those that are set in subnormal numbers, too."""


def case_of(problem: Problem, call: FuzzedCall) -> Case:
    """The call's data.  Weights depend on the problem and on the kind of values, not on the seed, but for exact data."""
    routing = ROUTINGS[call.routing]
    if call.values == EXACT:
        return random_case(problem, call.tokens, call.seed, **routing)
    generator = torch.Generator().manual_seed(call.seed)
    idx = random_routing(problem, list(call.tokens), generator, **routing)
    drawn = [random_inputs(problem, rank, count, call.seed) for rank, count in enumerate(call.tokens)]
    x, sf = zip(*(changed(one.x, one.x_sf, call.values, generator) for one in drawn), strict=True)
    weights = list(weights_of(problem, call.values))
    return Case(problem, list(x), list(sf), idx, [one.topk_weights for one in drawn], weights, exact=False)


@lru_cache(4)
def weights_of(problem: Problem, values: str) -> tuple[ExpertWeights, ...]:
    """Weights of every rank's experts."""
    generator, found = torch.Generator().manual_seed(0), []
    for rank in range(problem.num_ranks):
        drawn = random_weights(problem, rank, 0)
        fc1, fc1_sf = changed(drawn.fc1, drawn.fc1_sf, values, generator)
        fc2, fc2_sf = changed(drawn.fc2, drawn.fc2_sf, values, generator)
        found.append(drawn if values == "equal" else replace(drawn, fc1=fc1, fc1_sf=fc1_sf, fc2=fc2, fc2_sf=fc2_sf))
    return tuple(found)


def changed(codes: torch.Tensor, scales: torch.Tensor, values: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal numbers as codes with scales, E4M3 or packed E2M1, made what `VALUES` says."""
    raw = codes.view(torch.uint8)
    if values == "equal":
        return raw[:1].expand_as(raw).contiguous().view(codes.dtype), scales[:1].expand_as(scales).contiguous()
    if values == "heavy":
        normal, other = torch.randn(2, *scales.shape, generator=generator)
        tails = (3 * normal / other.abs().clamp(min=1e-3)).round()
        return codes, moved(scales, tails.clamp(-BINADES, BINADES).int())
    if values == "subnormal":
        down = torch.full(scales.shape, -DOWN, dtype=torch.int32)
        return (raw & SUBNORMAL[codes.dtype]).view(codes.dtype), moved(scales, down)
    if values == "zeros":
        zero = torch.rand(raw.shape, generator=generator) < 0.5
        return torch.where(zero, raw & SIGNS[codes.dtype], raw).view(codes.dtype), scales
    return codes, scales


def moved(scales: torch.Tensor, binades: torch.Tensor) -> torch.Tensor:
    """FP32 or UE8M0 scales times powers of two."""
    if scales.dtype == torch.uint8:
        return (scales.int() + binades).clamp(1, 254).to(torch.uint8)
    return torch.ldexp(scales, binades)
