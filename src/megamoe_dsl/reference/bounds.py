"""How far a correct kernel may be from the oracle when FP32 sums are not exact.

Everything between the two sums of the layer is monotone (BF16 rounding, clamp, E4M3 cast, scale byte of amax), so the bound carries
intervals: the kernel's value lies between the images of the interval's ends. That makes it tight: away from a rounding boundary both
ends round alike and the width disappears. The steps, for K summed products p:

1. Linear1: |kernel - exact| <= K * 2^-24 * norm(p), plus what BF16 rounding and the clamp make of that interval.
2. SwiGLU: |silu'| < 1.1, and 2^-17 relative for approximate exponential and reciprocal.
3. Requantisation: the interval of amax gives the scale bytes that are possible (a step doubles the whole block's scale); under each, the
   interval of the value gives the codes that are possible.
4. Linear2: the code errors times |w|, plus K * 2^-24 * norm(p), then BF16.
5. Combine: errors of the slots added, FP32 roundings, BF16.

`norm` is the 1-norm when `rigorous`; then no kernel that follows the definition can leave the bound, but code flips of thousands of
channels are assumed to conspire. Otherwise it is max(2-norm, |sum|): partial sums of products of mixed sign grow like the 2-norm, and K
roundings of 2^-24 of it also cover the K / 32 truncated additions of a tensor core. The code errors then add in quadrature times 8: they
are independent and centred, so Hoeffding's inequality gives a probability below 2 * exp(-32) per element. Use this one for tests.
"""

from collections.abc import Sequence

import torch

from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import (
    SCALE_BLOCK,
    ExpertWeights,
    decode_e4m3,
    decode_ue8m0,
    dequantize_e2m1,
    dequantize_e4m3,
    e4m3_scale_byte,
    encode_e4m3,
    inverse_scale,
)
from megamoe_dsl.reference.moe import check_inputs, expert_inputs
from megamoe_dsl.reference.stages import combine, requantize, swiglu

_UNIT = 2.0**-24  # half an ulp of FP32
_SILU_SLOPE = 1.1  # max |silu'| is 1.0998, at 2.4
_SFU_ERROR = 2.0**-17  # ex2 and rcp are within 2 ulp; the FP32 argument of ex2 loses up to 2^-18 more
_DEVIATIONS = 8.0


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.float().bfloat16().double()


def _sum_error(left: torch.Tensor, right: torch.Tensor, total: torch.Tensor, rigorous: bool) -> torch.Tensor:
    """FP32 accumulation error of left @ right^T, whose value is `total`."""
    count = left.shape[1]
    if rigorous:
        return count * _UNIT * (left.abs() @ right.abs().T)
    return count * _UNIT * torch.maximum((left.square() @ right.square().T).sqrt(), total.abs())


def _clamped_ends(total: torch.Tensor, error: torch.Tensor, low: float | None, high: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The BF16 value of `total` and the farthest that BF16 and clamp move it within +-error."""
    centre, ends = _bf16(total), [_bf16(total - error), _bf16(total + error)]
    if high is not None:
        limits = {"min": None if low is None else _bf16(torch.tensor(low)).item(), "max": _bf16(torch.tensor(high)).item()}
        centre, ends = centre.clamp(**limits), [end.clamp(**limits) for end in ends]
    return centre, torch.maximum((ends[0] - centre).abs(), (ends[1] - centre).abs())


def _code_error(values: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Distance between the dequantised reference activations and any the kernel may hold; all [n, I] float64."""
    codes, sf = requantize(values.float())
    reference = dequantize_e4m3(codes, sf)

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(SCALE_BLOCK, dim=1)

    blocks = (-1, SCALE_BLOCK)
    low = e4m3_scale_byte((values.abs() - error).unflatten(1, blocks).amax(2).clamp(min=0).float())
    high = e4m3_scale_byte((values.abs() + error).unflatten(1, blocks).amax(2).float())
    worst = torch.zeros_like(values)
    for byte in (low, high):
        factor, scale = spread(inverse_scale(byte)), spread(decode_ue8m0(byte))
        for end in (values - error, values + error):
            worst = torch.maximum(worst, (decode_e4m3(encode_e4m3(end.float() * factor)) * scale - reference).abs())
    # With more than two possible scales the ends do not bracket the ones between; the magnitude does.
    magnitude = (values.abs() + error) * (1 + 2.0**-4) + spread(decode_ue8m0(high)) * 2.0**-10 + reference.abs()
    return torch.where(spread(high.int() - low.int()) > 1, magnitude, worst)


def error_bound(
    problem: Problem,
    x: Sequence[torch.Tensor],
    x_sf: Sequence[torch.Tensor],
    topk_idx: Sequence[torch.Tensor],
    topk_weights: Sequence[torch.Tensor],
    weights: Sequence[ExpertWeights],
    rigorous: bool = False,
) -> list[torch.Tensor]:
    """Largest |y_kernel - y_reference| per element that FP32 accumulation order and approximate functions explain.

    Args:
        problem, x, x_sf, topk_idx, topk_weights, weights: as `mega_moe`.
        rigorous: worst case instead of the probabilistic bound (module docstring).

    Returns:
        Per rank float64 [T_r, H], same units as y.

    Raises:
        ProblemError, ValueError: as `mega_moe`.
    """
    routing = check_inputs(problem, x, x_sf, topk_idx, topk_weights, weights)
    shapes = [(problem.topk, idx.shape[0], problem.hidden) for idx in topk_idx]
    outputs = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    slot_error = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    clamp = problem.activation_clamp
    for job in expert_inputs(problem, routing, x, x_sf, topk_weights, weights):
        left, right = dequantize_e4m3(job.x, job.x_sf), dequantize_e2m1(job.l1, job.l1_sf)
        total = left @ right.T
        gate_sum, up_sum = total.chunk(2, dim=1)
        gate_error, up_error = _sum_error(left, right, total, rigorous).chunk(2, dim=1)
        gate, gate_error = _clamped_ends(gate_sum, gate_error, None, clamp)
        up, up_error = _clamped_ends(up_sum, up_error, None if clamp is None else -clamp, clamp)
        values = swiglu(total.float(), job.weight, clamp, problem.fast_math).double()
        silu = gate * gate.sigmoid()
        product_error = silu.abs() * up_error + _SILU_SLOPE * gate_error * (up.abs() + up_error)
        error = product_error * job.weight.double().abs().unsqueeze(1)
        error = error + _SFU_ERROR * (values.abs() + error)

        acts, deviation = dequantize_e4m3(*requantize(values.float())), _code_error(values, error)
        l2 = dequantize_e2m1(job.l2, job.l2_sf)
        out = acts @ l2.T
        out_error = deviation @ l2.abs().T
        if not rigorous:
            out_error = torch.minimum(out_error, _DEVIATIONS * (deviation.square() @ l2.square().T).sqrt())
        out_error = out_error + _sum_error(acts, l2, out, rigorous)
        rounded, out_error = _clamped_ends(out, out_error, None, None)
        for row, (rank, token, slot) in enumerate(job.rows.tolist()):
            outputs[rank][slot, token] = rounded[row].bfloat16()
            slot_error[rank][slot, token] = out_error[row]
    return [_combine_error(*arguments) for arguments in zip(outputs, slot_error, topk_idx, strict=True)]


def _combine_error(outputs: torch.Tensor, slot_error: torch.Tensor, topk_idx: torch.Tensor) -> torch.Tensor:
    total = outputs.double().sum(dim=0)
    roundings = outputs.shape[0] * _UNIT * (outputs.double().abs() + slot_error).sum(dim=0)
    error = slot_error.sum(dim=0) + roundings
    reference = combine(outputs, topk_idx).double()
    return torch.maximum((_bf16(total - error) - reference).abs(), (_bf16(total + error) - reference).abs())


def violations(y: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], bound: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Elements of y that leave the bound; NaN always does.

    Args:
        y, reference: per rank [T_r, H], any floating dtype.
        bound: per rank float64 [T_r, H] from `error_bound`.

    Returns:
        Per rank int64 [n, 2], (token, channel) of each violation.

    Raises:
        ValueError: when a shape differs from the reference's, naming the rank.
    """
    for rank, (got, want) in enumerate(zip(y, reference, strict=True)):
        if got.shape != want.shape:
            raise ValueError(f"y[{rank}]: shape {tuple(got.shape)}, allowed: {tuple(want.shape)}")
    return [(~((got.double() - want.double()).abs() <= limit)).nonzero() for got, want, limit in zip(y, reference, bound, strict=True)]
