"""Inputs for tests and examples: all ranks of a layer from one seed.

Exact cases. FP32 sums do not depend on their order when every partial sum, counted in units of the smallest product bit, stays below
2^24. Linear1 meets that by construction: E4M3 integers up to 15, every E2M1 value, and scales within a factor of 8 each; Cauchy-Schwarz
then bounds every partial sum, and that is asserted. The activations of Linear2 are whatever SwiGLU gives, codes over 17 binades times a
scale per block, so its weights are sparse, and rows that still carry too many bits for some token lose half of their entries until none
does. Nothing about the roundings is trivial: gate and up have some 20 significant bits before BF16.

What remains is `ex2.approx` and `rcp.approx`, whose last bits are not specified. Top-k weights are redrawn until no activation lies
within 2^-20 of an E4M3 rounding boundary or of a scale step, so a kernel that is a few ulp off still gives the same codes. Both values
of `fast_math` then give the same result too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import (
    ExpertWeights,
    decode_e4m3,
    decode_ue8m0,
    dequantize_e2m1,
    dequantize_e4m3,
    e2m1_values,
    e4m3_scale_byte,
    encode_e4m3,
    inverse_scale,
    pack_e2m1,
    quantize_e2m1,
    quantize_e4m3,
    unpack_e2m1,
)
from megamoe_dsl.quant.formats import SCALE_BLOCK
from megamoe_dsl.reference import MoeResult, error_bound, linear1, mega_moe_stages, requantize, route, swiglu
from megamoe_dsl.reference.moe import ExpertInputs, expert_inputs

_MAX_INTEGER = 15  # the largest run of integers that E4M3 holds
_SCALE_STEPS = 4  # neighbouring scales within an exact operand: a factor of 8
_L2_ENTRIES = 32  # nonzero weights per L2 row to start from
_SPREAD = 1.5  # standard deviation of log2 of the block magnitudes of normal data
_FP32_BITS = 24
_MARGIN = 2.0**-20
_MAX_REDRAWS = 200


@dataclass(frozen=True)
class Case:
    """Inputs of a layer, one list entry per rank; fields as the arguments of `reference.mega_moe`.

    Attributes:
        exact: any FP32 accumulation order gives the reference's bits.
    """

    problem: Problem
    x: list[torch.Tensor]
    x_sf: list[torch.Tensor]
    topk_idx: list[torch.Tensor]
    topk_weights: list[torch.Tensor]
    weights: list[ExpertWeights] = field(repr=False)
    exact: bool

    def reference(self, accumulate: torch.dtype = torch.float64) -> MoeResult:
        """The oracle's output and intermediates (`reference.mega_moe_stages`)."""
        return mega_moe_stages(self.problem, self.x, self.x_sf, self.topk_idx, self.topk_weights, self.weights, accumulate)

    def bound(self, rigorous: bool = False) -> list[torch.Tensor]:
        """Per rank float64 [T_r, H]: zeros for an exact case, else `reference.error_bound`."""
        if self.exact:
            return [torch.zeros(x.shape, dtype=torch.float64) for x in self.x]
        return error_bound(self.problem, self.x, self.x_sf, self.topk_idx, self.topk_weights, self.weights, rigorous)


def random_routing(
    problem: Problem,
    tokens: Sequence[int],
    generator: torch.Generator,
    mask: float = 0.0,
    skew: bool = False,
    target_expert: int | None = None,
) -> list[torch.Tensor]:
    """Draw distinct experts for every token.

    Args:
        problem: num_experts, topk and num_ranks.
        tokens: tokens of each rank.
        generator: source of randomness.
        mask: fraction of slots set to -1 afterwards.
        skew: one random expert is chosen by most tokens, a few others by many.
        target_expert: this expert is in every row; with topk = 1 all tokens go to it.

    Returns:
        Per rank int64 [T_r, topk], the slots of a row in random order.

    Raises:
        ProblemError: when an argument does not fit `problem`.
    """
    if len(tokens) != problem.num_ranks:
        raise ProblemError("len(tokens)", len(tokens), f"num_ranks = {problem.num_ranks}")
    if not 0.0 <= mask <= 1.0:
        raise ProblemError("mask", mask, "between 0 and 1")
    if target_expert is not None and not 0 <= target_expert < problem.num_experts:
        raise ProblemError("target_expert", target_expert, f"None or 0..{problem.num_experts - 1}")
    bias = torch.zeros(problem.num_experts)
    if skew:
        order = torch.randperm(problem.num_experts, generator=generator)
        bias[order] = 6.0 / (1.0 + torch.arange(problem.num_experts))
    if target_expert is not None:
        bias[target_expert] = 1e6
    drawn = []
    for rank, count in enumerate(tokens):
        problem.check_num_tokens(count, f"tokens[{rank}]")
        # Gumbel noise and the largest topk: sampling without replacement with probabilities exp(bias).
        noise = -torch.empty(count, problem.num_experts).exponential_(generator=generator).log()
        idx = (noise + bias).topk(problem.topk, dim=1).indices
        idx = idx.gather(1, torch.rand(idx.shape, generator=generator).argsort(dim=1))
        drawn.append(idx.masked_fill(torch.rand(idx.shape, generator=generator) < mask, -1))
    return drawn


def random_case(
    problem: Problem,
    tokens: Sequence[int],
    seed: int,
    mask: float = 0.0,
    skew: bool = False,
    exact: bool = True,
    target_expert: int | None = None,
) -> Case:
    """Inputs for every rank of a layer.

    Args:
        problem: the layer.
        tokens: tokens of each rank, 0 allowed.
        seed: equal seeds give equal cases.
        mask, skew, target_expert: see `random_routing`.
        exact: data whose result does not depend on FP32 summation order (module docstring); False draws normal data with block
            magnitudes over several binades.

    Returns:
        The `Case`.

    Raises:
        ProblemError: when an argument does not fit `problem`.
        RuntimeError: when `exact` data cannot be found (a shape far beyond the ones of the presets).
    """
    generator = torch.Generator().manual_seed(seed)
    topk_idx = random_routing(problem, tokens, generator, mask, skew, target_expert)
    make_x, make_weights = (_exact_x, _exact_weights) if exact else (_normal_x, _normal_weights)
    x, x_sf = zip(*(make_x(problem, count, generator) for count in tokens), strict=True)
    weights = [make_weights(problem, generator) for _ in range(problem.num_ranks)]
    topk_weights = [torch.rand(idx.shape, generator=generator) * 0.75 + 0.25 for idx in topk_idx]
    case = Case(problem, list(x), list(x_sf), topk_idx, topk_weights, weights, exact)
    if exact:
        for job in _jobs(case):
            _assert_linear1_exact(job)
            acts, acts_sf = _settle_topk_weights(case, job, generator)
            _thin_linear2(job, acts, acts_sf)
    return case


def _jobs(case: Case) -> Iterator[ExpertInputs]:
    return expert_inputs(case.problem, route(case.problem, case.topk_idx), case.x, case.x_sf, case.topk_weights, case.weights)


def _draw_bytes(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal values times a log-normal factor per block, unit variance: plain normal data has nearly equal scales and exact FP32 sums."""
    factor = torch.exp2(_SPREAD * torch.randn(*shape[:-1], shape[-1] // SCALE_BLOCK, generator=generator))
    factor = factor * math.exp(-((_SPREAD * math.log(2)) ** 2))
    return torch.randn(shape, generator=generator) * factor.repeat_interleave(SCALE_BLOCK, dim=-1)


def _normal_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize_e4m3(_normal((count, problem.hidden), generator))


def _normal_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    l1, l1_sf = quantize_e2m1(_normal((el, 2 * i, h), generator) * h**-0.5)
    l2, l2_sf = quantize_e2m1(_normal((el, h, i), generator) * i**-0.5)
    return ExpertWeights(l1, l1_sf, l2, l2_sf)


def _exact_x(problem: Problem, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    integers = torch.randint(-_MAX_INTEGER, _MAX_INTEGER + 1, (count, problem.hidden), generator=generator)
    sf = _draw_bytes((count, problem.hidden // SCALE_BLOCK), 127 - _SCALE_STEPS, 127, generator)
    return encode_e4m3(integers.float()), sf


def _exact_weights(problem: Problem, generator: torch.Generator) -> ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    # Scales put the standard deviation of gate and up near 4: sqrt(H) products of about 9 * 2.9, and two scales of about 0.29 and 4.6
    # times the smallest weight scale.
    base = 127 + round(math.log2(4.0 / (h**0.5 * 9 * 2.9 * 0.29 * 4.6)))
    return ExpertWeights(
        l1=_draw_bytes((el, 2 * i, h // 2), 0, 256, generator),
        l1_sf=_draw_bytes((el, 2 * i, h // SCALE_BLOCK), base, base + _SCALE_STEPS, generator),
        l2=_sparse_rows(el, h, i, generator),
        l2_sf=_draw_bytes((el, h, i // SCALE_BLOCK), 120, 123, generator),
    )


def _sparse_rows(el: int, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Packed E2M1 [el, rows, columns / 2] with one nonzero in each of `_L2_ENTRIES` equal parts of every row."""
    part = columns // _L2_ENTRIES
    place = torch.randint(0, part, (el, rows, _L2_ENTRIES, 1), generator=generator)
    magnitude = torch.randint(1, 8, place.shape, dtype=torch.uint8, generator=generator)
    sign = torch.randint(0, 2, place.shape, dtype=torch.uint8, generator=generator) * 8
    code = torch.zeros(el, rows, _L2_ENTRIES, part, dtype=torch.uint8).scatter_(3, place, magnitude + sign)
    return pack_e2m1(code.flatten(2))


def _assert_linear1_exact(job: ExpertInputs) -> None:
    """Cauchy-Schwarz: any partial sum is at most |x| |w|; every product is a multiple of the smallest scales times 1 times 0.5."""
    unit = decode_ue8m0(job.x_sf).min() * decode_ue8m0(job.l1_sf).min() * 0.5
    largest = dequantize_e4m3(job.x, job.x_sf).norm(dim=1).max() * dequantize_e2m1(job.l1, job.l1_sf).norm(dim=1).max()
    if float(largest / unit) >= 2.0**_FP32_BITS:
        raise RuntimeError(f"expert {job.expert}: Linear1 sums reach {float(largest / unit):.3g} units, allowed: below 2^{_FP32_BITS}")


def _fragile(values: torch.Tensor) -> torch.Tensor:
    """Rows of `values` (float32 [n, I]) whose codes or scales change when the values move by a relative 2^-20: bool [n]."""
    amax = values.abs().unflatten(1, (-1, SCALE_BLOCK)).amax(2)
    low, high = e4m3_scale_byte(amax * (1 - _MARGIN)), e4m3_scale_byte(amax * (1 + _MARGIN))
    scaled = values * inverse_scale(low).repeat_interleave(SCALE_BLOCK, dim=1)
    codes = [encode_e4m3(scaled * factor).view(torch.uint8) for factor in (1 - _MARGIN, 1 + _MARGIN)]
    return (low != high).any(dim=1) | (codes[0] != codes[1]).any(dim=1)


def _settle_topk_weights(case: Case, job: ExpertInputs, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Redraw the top-k weights of fragile rows in `case`; returns the L1 activations and scales of the job's rows."""
    gate_up = linear1(job.x, job.x_sf, job.l1, job.l1_sf)
    weight = job.weight.clone()
    for _ in range(_MAX_REDRAWS):
        values = swiglu(gate_up, weight, case.problem.activation_clamp, case.problem.fast_math)
        rows = _fragile(values).nonzero().flatten()
        if not len(rows):
            break
        weight[rows] = torch.rand(len(rows), generator=generator) * 0.75 + 0.25
    else:
        raise RuntimeError(f"expert {job.expert}: {len(rows)} rows keep activations on a rounding boundary after {_MAX_REDRAWS} draws")
    for (rank, token, slot), value in zip(job.rows.tolist(), weight, strict=True):
        case.topk_weights[rank][token, slot] = value
    return requantize(values)


def _low_bit(values: torch.Tensor) -> torch.Tensor:
    """Exponent of the lowest set bit of each float64 value (of few mantissa bits); a large number for zero."""
    mantissa, exponent = torch.frexp(values)
    integer = (mantissa.abs() * 2.0**8).to(torch.int64)
    lowest = torch.log2((integer & -integer).clamp(min=1).double()).to(torch.int32)
    return torch.where(values == 0, 10_000, exponent - 8 + lowest)


def _thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    """Drop entries of the job's L2 rows, in place, until the sums of every token are exact in FP32."""
    codes = unpack_e2m1(job.l2)
    order = (codes != 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :_L2_ENTRIES]
    picked = codes.gather(1, order)
    scale = decode_ue8m0(job.l2_sf).gather(1, order // SCALE_BLOCK)
    value, value_bit = decode_e4m3(acts), _low_bit(decode_e4m3(acts)) + acts_sf.int().repeat_interleave(SCALE_BLOCK, dim=1) - 127
    value = value * decode_ue8m0(acts_sf).repeat_interleave(SCALE_BLOCK, dim=1)
    keep = torch.full((codes.shape[0],), _L2_ENTRIES)
    while True:
        live = torch.arange(_L2_ENTRIES) < keep[:, None]
        weight = torch.where(live, e2m1_values()[picked.int()] * scale, 0.0)
        weight_bit = _low_bit(weight)
        wide = torch.zeros(codes.shape[0], dtype=torch.bool)
        for token in range(value.shape[0]):
            size = (value[token][order].abs() * weight.abs()).sum(dim=1)
            unit = (value_bit[token][order] + weight_bit).amin(dim=1)
            wide |= size * torch.exp2(-unit.double()) >= 2.0**_FP32_BITS
        if not bool(wide.any()):
            break
        keep[wide] //= 2  # a single product has 4 + 2 significant bits, so this ends
    codes.scatter_(1, order, torch.where(live, picked, 0).to(torch.uint8))
    job.l2.copy_(pack_e2m1(codes))
