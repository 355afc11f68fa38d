"""How far a correct kernel may be from the oracle when its sums are not exact.

All between the layer's two sums is monotone (BF16 rounding, clamp, cast, scale byte of amax), so the bound carries intervals: the kernel's
value lies between the images of the interval's ends.  The steps, for K summed products:

1. Linear1: |kernel - reference| <= E (below), plus what BF16 rounding and the clamp make of that interval.
2. Activation: of gate a slope below 1.1, of up at most 1; 2^-17 relative for approximate exponential, reciprocal and tanh.
3. Requantization: the interval of amax gives the possible scale bytes, under each the interval of the value gives the possible codes.
4. Linear2: the code errors times |w|, plus E, then BF16; where results travel as E4M3, step 3 once more.
5. Combine: errors of the slots added, FP32 roundings, BF16.

Code errors, independent and centered, add in quadrature times 8: by Hoeffding's inequality an element leaves the bound with a probability
below 2 * exp(-32).  E, with norm2 = max(2-norm, |sum|):

scaled by the tensor core
         FP32 accumulation: K * 2^-24 times norm2, with which sums of mixed sign grow.
promoted A Hopper tensor core cuts every addend 13 bits below the largest exponent, and its result to 14 bits (`hopper_dot`).  Cuts oppose
         their addends, so for mixed signs they are centered: on an H200 the root mean square was 0.8 to 1.9 units of 2^-13 norm2, and of
         sums of one sign the maximum 15.5.  E is 16 units of the whole sum; promotion adds 2^-24 of a partial result twice a block.

On Hopper the reference with `accumulate="hopper"` has partial sums to the bit: with `sums_exact` only step 2 and what follows is left.
No bound counts what E2M1 weights lose where a product of scales is no normal FP32 number (`promoted_matmul`).
"""

import torch

from megamoe_dsl import quant
from megamoe_dsl.quant.micro_scaling import NVFP4_SCALING
from megamoe_dsl.recipe import RECIPES, ExpertFactors
from megamoe_dsl.reference.activation import activate, gated, linear
from megamoe_dsl.reference.moe import LayerInputs, travel_dtype
from megamoe_dsl.reference.promoted import E4M3_SUMS, Accumulate
from megamoe_dsl.reference.stages import combine, factors_of_rows, requantize, scaled_matmul, travel, with_bias

_UNIT = 2.0**-24  # half an ulp of FP32
_GATE_SLOPE = 1.1  # max |silu'| is 1.0998, at 2.4; another slope of the sigmoid changes where, a limit makes it less
_SFU_ERROR = 2.0**-17  # ex2 and rcp are within 2 ulp; the FP32 argument of ex2 loses up to 2^-18 more
_DEVIATIONS = 8.0
_CUT = 2.0**-E4M3_SUMS.fraction_bits
_CUTS = 16


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.float().bfloat16().double()


def _sum_error(left: torch.Tensor, right: torch.Tensor, total: torch.Tensor, promoted: bool = False) -> torch.Tensor:
    """E of left @ right^T, whose value is `total`.  Scales are the same within a promoted block, so scaled operands serve."""
    k = left.shape[1]
    units = _CUTS * _CUT + 2 * -(-k // quant.FP32_SCALE_BLOCK) * _UNIT if promoted else k * _UNIT
    return units * torch.maximum((left.square() @ right.square().T).sqrt(), total.abs())


def scaled_sums(x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact sums of recipes whose scales the tensor core applies, and E of each: two float64 [n, rows].  x, x_sf, w and w_sf
    are those of `stages.scaled_matmul`, not promoted."""
    left, right = quant.dequantize(x, x_sf), quant.dequantize(w, w_sf)
    total = left @ right.T
    return total, _sum_error(left, right, total)


def _linear_sums(
    operands: tuple[torch.Tensor, ...],
    promoted: bool,
    exact: bool,
    accumulate: Accumulate,
    factor: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    deviation: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of a linear times a factor, with a weighted bias, and their error, float64.  `deviation` is that of the left operand of Linear2.
    Sums that are `exact` have E only in rows with a deviation, however small: what the tensor core cuts off may then be another unit."""
    x, x_sf, w, w_sf = operands
    parts = 2 if deviation is None else 1
    left, right = quant.dequantize(x, x_sf), quant.dequantize(w, w_sf, parts=parts)
    as_summed = promoted or accumulate == "hopper"  # the FP32 result itself, which its roundings move away from the exact sum
    total = scaled_matmul(x, x_sf, w, w_sf, accumulate, parts).double() if as_summed else left @ right.T
    error, rounding = _sum_error(left, right, total, promoted), 0.0 if exact else 2 * _UNIT
    if exact:
        error = torch.zeros_like(error) if deviation is None else error.where(deviation.any(dim=1)[:, None], 0.0)
    if deviation is not None:
        error = error + torch.minimum(deviation @ right.abs().T, _DEVIATIONS * (deviation.square() @ right.square().T).sqrt())
    if factor is not None:
        total, error = (total.float() * factor).double(), error * factor
        error = error + rounding * total.abs()
    if bias is not None:
        total = with_bias(total.float(), bias, weight).double()
        error = error + rounding * total.abs()
    return total, error


def _clamped_ends(total: torch.Tensor, error: torch.Tensor, low: float | None, high: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The BF16 value of `total` and the farthest that BF16 and clamp move it within +-error."""
    center, ends = _bf16(total), [_bf16(total - error), _bf16(total + error)]
    if high is not None:
        limits = {"min": None if low is None else _bf16(total.new_tensor(low)).item(), "max": _bf16(total.new_tensor(high)).item()}
        center, ends = center.clamp(**limits), [end.clamp(**limits) for end in ends]
    return center, torch.maximum((ends[0] - center).abs(), (ends[1] - center).abs())


def _code_error(
    element: quant.MicroScaling, values: torch.Tensor, error: torch.Tensor, reference: torch.Tensor, block: int
) -> torch.Tensor:
    """Distance between the dequantized reference activations and any the kernel may hold; all [n, I] float64, a scale per `block`."""

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(block, dim=1)[:, : values.shape[1]]

    low = element.scale_byte(quant.blocks_of(values.abs() - error, block).amax(2).clamp(min=0).float())
    high = element.scale_byte(quant.blocks_of(values.abs() + error, block).amax(2).float())
    worst = torch.zeros_like(values)
    for byte in (low, high):
        scale = spread(element.scale(byte))
        divisor = scale.where(scale > 0, torch.inf)
        for end in (values - error, values + error):
            worst = torch.maximum(worst, (element.rounded((end.float() / divisor).float()) * scale - reference).abs())
    # With more than two possible scales the ends do not bracket the ones between; the magnitude does.
    magnitude = (values.abs() + error) * (1 + element.relative) + spread(element.scale(high)) * element.smallest + reference.abs()
    return torch.where(spread(high.int() - low.int()) > 1, magnitude, worst)


def error_bound(inputs: LayerInputs, sums_exact: bool = False, accumulate: Accumulate = torch.float64) -> list[torch.Tensor]:
    """Largest |y_kernel - y_reference| per element that accumulation in the tensor core and approximate functions explain.

    sums_exact  the kernel's two sums are known to be the reference's, bit for bit, where their operands are
    accumulate  that of the reference compared with

    Per rank float64 [T_r, H], same units as y.  Raises as `LayerInputs.check`.
    """
    problem, routing, topk_idx = inputs.problem, inputs.check(), inputs.topk_idx
    shapes = [(problem.topk, idx.shape[0], problem.hidden) for idx in topk_idx]
    device = inputs.x[0].device
    outputs = [torch.zeros(shape, dtype=travel_dtype(problem), device=device) for shape in shapes]
    slot_error = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes]
    clamp, block = problem.activation_clamp, quant.input_layout(problem)[1]
    hidden, how = RECIPES[problem.recipe].hidden, (RECIPES[problem.recipe].promoted, sums_exact, accumulate)
    for job in inputs.jobs(routing):
        own = job.own
        each = None if own.factors is None else ExpertFactors(*own.factors)
        of_rows = None if own.factors is None else factors_of_rows(own.factors, len(own.fc1))
        total, total_error = _linear_sums((job.x, job.x_sf, own.fc1, own.fc1_sf), *how, of_rows, own.fc1_bias)
        gate_sum, up_sum = total.chunk(2, dim=1)
        gate_error, up_error = total_error.chunk(2, dim=1)
        gate, gate_error = _clamped_ends(gate_sum, gate_error, None, clamp)
        up, up_error = _clamped_ends(up_sum, up_error, None if clamp is None else -clamp, clamp)
        values = activate(problem, total.float(), job.hidden_weight).double()
        factor = linear(problem.activates, up)
        product_error = gated(problem.activates, gate).abs() * up_error + _GATE_SLOPE * gate_error * (factor.abs() + up_error)
        error = product_error if job.hidden_weight is None else product_error * job.hidden_weight.double().abs().unsqueeze(1)
        error = error + _SFU_ERROR * (values.abs() + error)

        codes, of_hidden = requantize(values.float(), problem.recipe, job.hidden_factor), job.hidden_factor
        if of_hidden is not None:
            values, error = values / of_hidden, error / of_hidden
        if hidden.scale is None:
            _, deviation = _clamped_ends(values, error, None, None)
        else:
            element = NVFP4_SCALING if hidden.factor else quant.MICRO_SCALING[hidden.element]
            deviation = _code_error(element, values, error, quant.dequantize(*codes), block)
        operands, fc2_factor = (*codes, own.fc2, own.fc2_sf), None if each is None else each.fc2
        out, out_error = _linear_sums(operands, *how, fc2_factor, own.fc2_bias, job.hidden_weight, deviation)
        rounded, out_error = _clamped_ends(out, out_error, None, None)
        sent = travel(rounded.bfloat16(), problem.combine)
        if (form := problem.formats.combine).scale:
            out_error = _code_error(quant.MICRO_SCALING[form.element], rounded, out_error, sent.double(), form.channels)
        for row, (rank, token, slot) in enumerate(job.rows.tolist()):
            outputs[rank][slot, token] = sent[row]
            slot_error[rank][slot, token] = out_error[row]
    weigh = inputs.topk_weights if problem.weigh_results else [None] * problem.num_ranks
    return [_combine_error(*arguments) for arguments in zip(outputs, slot_error, topk_idx, weigh, strict=True)]


def _combine_error(outputs: torch.Tensor, slot_error: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    factor = torch.where(topk_idx < 0, 0.0, 1.0 if weights is None else weights.double()).T.unsqueeze(2)
    weighed, slot_error = outputs.double() * factor, slot_error * factor.abs()
    total = weighed.sum(dim=0)
    roundings = outputs.shape[0] * _UNIT * (weighed.abs() + slot_error).sum(dim=0)
    error = slot_error.sum(dim=0) + roundings
    reference = combine(outputs, topk_idx, weights).double()
    return torch.maximum((_bf16(total - error) - reference).abs(), (_bf16(total + error) - reference).abs())
