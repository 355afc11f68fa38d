"""Normal data, and data whose sums are exact in FP32, for the number formats of every recipe.

FP32 sums do not depend on their order when every partial sum, in units of the smallest product bit, stays below 2^24; of promoted recipes
the sums of 128 below 2^14, as the tensor core keeps them.  Linear1 is exact by construction: small integers or E2M1 values, with scales
within a factor of 8.  The activations of Linear2 are whatever SwiGLU gives, so its weights are sparse, and rows that still carry too many
bits for some token lose half of their entries until none does.

All is drawn on the generator's device; weights with FP32 scales, of fp8xmxfp4 and in BF16 expert by expert, so that a rank of a real layer
takes seconds on a GPU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from megamoe_dsl import quant
from megamoe_dsl.cases.common import NORMAL_FACTOR, UNSCALED_BLOCK, assert_sums_exact, block_factors, draw_integers, normal, thin
from megamoe_dsl.problem import Problem
from megamoe_dsl.recipe import ExpertFactors
from megamoe_dsl.reference.moe import ExpertInputs

Scaled = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Generators:
    """What makes the data of one recipe.

    exact_x         tokens whose sums in Linear1 are exact, and their scales
    normal_weights  of one rank, of variance 1 / K, so that outputs are of the size of inputs
    exact_weights   weights whose sums are exact with `exact_x`, Linear2 only once it is thinned; gate and up are of the size of 4
    step            by the channels of x, what products of elements are multiples of
    """

    exact_x: Callable[[Problem, int, torch.Generator], Scaled]
    normal_weights: Callable[[Problem, torch.Generator], quant.ExpertWeights]
    exact_weights: Callable[[Problem, torch.Generator], quant.ExpertWeights]
    step: Callable[[int], float]

    def check_linear1(self, job: ExpertInputs) -> None:
        """Raises `CaseError` unless the FP32 sums of Linear1 are exact in any order."""
        x, w = quant.dequantize(job.x, job.x_sf), quant.dequantize(job.own.fc1, job.own.fc1_sf, parts=2)
        assert_sums_exact(job, x, w, _smallest(job.x_sf) * _smallest(job.own.fc1_sf) * self.step(x.shape[1]))


_STEPS = 4  # neighboring scales within an exact operand: a factor of 8
_SIZE = 4.0  # the standard deviation of gate and up


def _bytes(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return draw_integers(shape, low, high, generator).to(torch.uint8)


def _small_integers(shape: tuple[int, ...], most: int, generator: torch.Generator) -> torch.Tensor:
    return draw_integers(shape, -most, most + 1, generator).float()


def _exponent(hidden: int, product: float) -> int:
    """Of the smallest weight scale: sqrt(H) products of about `product`, token scales of about 0.29, make gate and up of the size of 4."""
    return round(math.log2(_SIZE / (hidden**0.5 * product * 0.29)))


# ---- micro-scaled recipes

_TOKEN_INTEGER, _WEIGHT_INTEGER = 15, 10  # 15: the largest run of integers that E4M3 holds
_E4M3_RMS, _E4M3_WEIGHT_RMS, _E2M1_RMS = 9.0, 6.1, 2.9  # of such integers, and of E2M1 codes that are equally likely
_WEIGHT_SCALE = 4.6  # times the smallest, on average
_FC2_ENTRIES = 32  # nonzero weights per Linear2 row to start from
_EIGHTHS = 8  # E4M3 has three bits after the leading one


def _token_scales(problem: Problem, count: int, generator: torch.Generator) -> torch.Tensor:
    return _bytes((count, problem.hidden // quant.SCALE_BLOCK), 127 - _STEPS, 127, generator)


def _x_e4m3(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    codes = quant.encode_e4m3(_small_integers((count, problem.hidden), _TOKEN_INTEGER, generator))
    return codes, _token_scales(problem, count, generator)


def _x_e2m1(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    codes = _bytes((count, problem.hidden // 2), 0, 256, generator)
    return codes, _token_scales(problem, count, generator)


def _x_nvfp4(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    codes, _ = _x_e2m1(problem, count, generator)
    return codes, quant.encode_e4m3(_powers((count, problem.hidden // quant.NVFP4_BLOCK), -_STEPS, generator))


def _factors(problem: Problem, generator: torch.Generator, **factors: float) -> torch.Tensor:
    """float32 [El, 5]: of every expert about these, of tokens 1."""
    shape = problem.experts_per_rank, len(factors)
    near = torch.rand(shape, generator=generator, device=generator.device) / 2 + 0.75
    return torch.cat([torch.ones_like(near[:, :1]), near * torch.tensor(list(factors.values()), device=near.device)], dim=1)


def _exact_nvfp4(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    drawn, size = _exact_e2m1(problem, generator, _E2M1_RMS), 2.0 ** _exponent(h, _E2M1_RMS**2 * _WEIGHT_SCALE)
    sf = [quant.encode_e4m3(_powers((el, rows, k // quant.NVFP4_BLOCK), 0, generator)) for rows, k in ((2 * i, h), (h, i))]
    return replace(
        drawn, fc1_sf=sf[0], fc2_sf=sf[1], factors=_factors(problem, generator, gate=size, up=size, hidden=2.0**-4, fc2=2.0**-11)
    )


def _normal_nvfp4(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    drawn = []
    for rows, k in ((i, h), (i, h), (h, i)):
        w = normal((el, rows, k), quant.NVFP4_BLOCK, generator) * k**-0.5
        factor = torch.stack([quant.nvfp4_factor(one) for one in w])
        drawn.append((*quant.quantize_nvfp4(w, factor), factor * NORMAL_FACTOR))
    (gate, gate_sf, of_gate), (up, up_sf, of_up), (fc2, fc2_sf, of_fc2) = drawn
    hidden = torch.full_like(of_gate, NORMAL_FACTOR)
    factors = torch.stack(ExpertFactors(hidden, of_gate, of_up, hidden, of_fc2), dim=1)
    return quant.ExpertWeights(torch.cat([gate, up], dim=1), torch.cat([gate_sf, up_sf], dim=1), fc2, fc2_sf, factors=factors)


def _normal_micro_scaled(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    quantize = quant.MICRO_SCALING[problem.formats.weights.element].quantize
    fc1, fc1_sf = quantize(normal((el, 2 * i, h), quant.SCALE_BLOCK, generator) * h**-0.5)
    fc2, fc2_sf = quantize(normal((el, h, i), quant.SCALE_BLOCK, generator) * i**-0.5)
    return quant.ExpertWeights(fc1, fc1_sf, fc2, fc2_sf)


def _fc1_scales(problem: Problem, generator: torch.Generator, product: float) -> torch.Tensor:
    base = 127 + _exponent(problem.hidden, product * _WEIGHT_SCALE)
    return _bytes((problem.experts_per_rank, 2 * problem.intermediate, problem.hidden // quant.SCALE_BLOCK), base, base + _STEPS, generator)


def _exact_e2m1(problem: Problem, generator: torch.Generator, token: float = _E4M3_RMS) -> quant.ExpertWeights:
    """`token` is the root mean square of the tokens' elements."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    return quant.ExpertWeights(
        fc1=_bytes((el, 2 * i, h // 2), 0, 256, generator),
        fc1_sf=_fc1_scales(problem, generator, token * _E2M1_RMS),
        fc2=_sparse_e2m1((el, h, _FC2_ENTRIES), i, generator),
        fc2_sf=_bytes((el, h, i // quant.SCALE_BLOCK), 120, 123, generator),
    )


def _sparse_e2m1(shape: tuple[int, int, int], columns: int, generator: torch.Generator) -> torch.Tensor:
    """Packed E2M1 [el, rows, columns / 2] with one nonzero in each of `shape[2]` equal parts of every row."""
    part = columns // shape[2]
    place = draw_integers((*shape, 1), 0, part, generator)
    magnitude = _bytes((*shape, 1), 1, 8, generator)
    sign = _bytes((*shape, 1), 0, 2, generator) * 8
    code = torch.zeros(*shape, part, dtype=torch.uint8, device=generator.device).scatter_(3, place, magnitude + sign)
    return quant.pack_e2m1(code.flatten(2))


def _exact_e4m3(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    drawn = _exact_e2m1(problem, generator)
    fc1 = _small_integers((*drawn.fc1.shape[:-1], problem.hidden), _WEIGHT_INTEGER, generator)
    fc2 = quant.micro_scaling_of(drawn.fc2).decode(drawn.fc2).float()
    fc2 *= 1 + draw_integers(fc2.shape, 0, _EIGHTHS, generator) / _EIGHTHS
    fc1_sf = _fc1_scales(problem, generator, _E4M3_RMS * _E4M3_WEIGHT_RMS)
    return quant.ExpertWeights(quant.encode_e4m3(fc1), fc1_sf, quant.encode_e4m3(fc2), drawn.fc2_sf)


def _smallest(sf: torch.Tensor) -> float:
    """Of scales, 1 where there are none."""
    return float((quant.decode_ue8m0(sf) if sf.dtype == torch.uint8 else sf.double()).min()) if sf.numel() else 1.0


def thin_linear2(job: ExpertInputs, acts: torch.Tensor, acts_sf: torch.Tensor) -> None:
    """Drops entries of a job's Linear2 rows, in place, until the FP32 sums of all these activations are exact in any order."""
    values = quant.dequantize(job.own.fc2, job.own.fc2_sf)
    there = values != 0
    order = there.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(there.sum(dim=1).max())]
    live = torch.zeros_like(there).scatter_(1, order, thin(order, values.gather(1, order), quant.dequantize(acts, acts_sf)))
    if job.own.fc2.dtype == torch.uint8:
        job.own.fc2.copy_(quant.pack_e2m1(quant.unpack_e2m1(job.own.fc2) * live))
    else:
        job.own.fc2.copy_(torch.where(live, job.own.fc2.float(), 0.0))


# ---- recipes with FP32 scales, and BF16

_BLOCK = quant.FP32_SCALE_BLOCK
_FP8_INTEGER, _BF16_INTEGER = 4, 31
_FP8_PRODUCT, _FP4_PRODUCT = 6.7 * 4.6, 2.6 * 2.9 * 6.5  # of elements, and of weight scales in the smallest
_BF16_DEVIATION = _BF16_INTEGER / 3**0.5  # of integers up to that
_FC2_VALUES = (64.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0)
_FC2_UNIT = 2.0**-11  # of BF16
_WIDEST = 13  # binades between the scales of normal weights


def _blocks(channels: int) -> int:
    return -(-channels // _BLOCK)


def _experts(problem: Problem, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    drawn = [draw() for _ in range(problem.experts_per_rank)]
    return torch.stack([one.view(torch.uint8) for one in drawn]).view(drawn[0].dtype)


def _powers(shape: tuple[int, ...], low: int, generator: torch.Generator) -> torch.Tensor:
    return torch.exp2(draw_integers(shape, low, low + _STEPS, generator).float())


def _x_fp8(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    sf = _powers((count, _blocks(problem.hidden)), -_STEPS, generator)
    return quant.encode_e4m3(_small_integers((count, problem.hidden), _FP8_INTEGER, generator)), sf


def _x_bf16(problem: Problem, count: int, generator: torch.Generator) -> Scaled:
    x = _small_integers((count, problem.hidden), _BF16_INTEGER, generator).bfloat16()
    return x, quant.no_scales(x)


def _normal_matrices(count: int, rows: int, columns: int, generator: torch.Generator, parts: int = 1) -> Scaled:
    """[count, parts * rows, columns] of variance 1 / columns, the magnitude of each 128 x 128 block of a part its own."""
    device, down, across = generator.device, _blocks(rows), _blocks(columns)
    codes = torch.empty(count, parts, rows, columns, dtype=torch.float8_e4m3fn, device=device)
    sf = torch.empty(count, parts, down, across, device=device)
    for expert in range(count):
        factor = block_factors((parts * down, across), generator) * columns**-0.5
        w = torch.randn(parts * down, _BLOCK, across, _BLOCK, generator=generator, device=device)
        w = w.mul_(factor[:, None, :, None]).view(parts, down * _BLOCK, across * _BLOCK)
        codes[expert], sf[expert] = quant.quantize_weight_e4m3(w[:, :rows, :columns])
    return codes.flatten(1, 2), sf.flatten(1, 2)


def _normal_fp8(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    return quant.ExpertWeights(*_normal_matrices(el, i, h, generator, parts=2), *_normal_matrices(el, h, i, generator))


def _normal_fp4(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    """The magnitude of each 32 of K its own; the smallest are made larger, so that E4M3 with a scale per 128 x 128 holds them too."""
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    drawn = []
    for rows, k in ((2 * i, h), (h, i)):
        experts = [quant.quantize_e2m1(normal((rows, k), quant.SCALE_BLOCK, generator) * k**-0.5) for _ in range(el)]
        codes, scales = (torch.stack(one) for one in zip(*experts, strict=True))
        drawn += [codes, scales.clamp(min=max(int(scales.max()) - _WIDEST, 0))]
    return quant.ExpertWeights(*drawn)


def _normal_bf16(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    h, i = problem.hidden, problem.intermediate
    drawn = [
        _experts(problem, lambda rows=rows, k=k: (normal((rows, k), UNSCALED_BLOCK, generator) * k**-0.5).bfloat16())  # type: ignore[misc]
        for rows, k in ((2 * i, h), (h, i))
    ]
    return quant.unscaled_weights(*drawn)


def _exact_fp8(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    return quant.ExpertWeights(
        fc1=_experts(problem, lambda: quant.encode_e4m3(_small_integers((2 * i, h), _FP8_INTEGER, generator))),
        fc1_sf=_powers((el, 2 * _blocks(i), _blocks(h)), _exponent(h, _FP8_PRODUCT), generator),
        fc2=_experts(problem, lambda: quant.encode_e4m3(_sparse_values(h, i, generator))),
        fc2_sf=_powers((el, _blocks(h), _blocks(i)), -11, generator),
    )


def _exact_fp4(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    el, h, i = problem.experts_per_rank, problem.hidden, problem.intermediate
    base = 127 + _exponent(h, _FP4_PRODUCT)
    fc1 = _experts(problem, lambda: _bytes((2 * i, h // 2), 0, 256, generator))
    wide = _bytes((el, 2 * i, _blocks(h)), base, base + _STEPS, generator).repeat_interleave(_BLOCK // quant.SCALE_BLOCK, dim=2)
    return quant.ExpertWeights(
        fc1=fc1,
        fc1_sf=wide[..., : h // quant.SCALE_BLOCK] + _bytes((el, 2 * i, h // quant.SCALE_BLOCK), 0, 2, generator),
        fc2=_experts(problem, lambda: _sparse_codes(h, i, generator)),
        fc2_sf=_bytes((el, h, i // quant.SCALE_BLOCK), 120, 124, generator),
    )


def _bf16_unit(hidden: int) -> float:
    return 2.0 ** round(math.log2(_SIZE / (hidden**0.5 * _BF16_DEVIATION**2)))


def _exact_bf16(problem: Problem, generator: torch.Generator) -> quant.ExpertWeights:
    h, i = problem.hidden, problem.intermediate
    fc1 = _experts(problem, lambda: _small_integers((2 * i, h), _BF16_INTEGER, generator).bfloat16() * _bf16_unit(h))
    return quant.unscaled_weights(fc1, _experts(problem, lambda: (_sparse_values(h, i, generator) * _FC2_UNIT).bfloat16()))


def _places(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [rows, blocks, 1]: a place in each block of 128 columns; the last may have fewer."""
    place = draw_integers((rows, _blocks(columns), 1), 0, _BLOCK, generator)
    place[:, -1] %= columns - (_blocks(columns) - 1) * _BLOCK
    return place


def _filled(place: torch.Tensor, values: torch.Tensor, columns: int) -> torch.Tensor:
    zeros = torch.zeros(*place.shape[:2], _BLOCK, dtype=values.dtype, device=values.device)
    return zeros.scatter_(2, place, values).flatten(1)[:, :columns]


def _sparse_values(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """float32 with one nonzero in each block of 128 columns, which E4M3 has."""
    place = _places(rows, columns, generator)
    magnitude = torch.tensor(_FC2_VALUES, device=generator.device)[draw_integers(place.shape, 0, len(_FC2_VALUES), generator)]
    return _filled(place, magnitude * (1 - 2 * draw_integers(place.shape, 0, 2, generator)), columns)


def _sparse_codes(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    place = _places(rows, columns, generator)
    codes = _bytes(place.shape, 1, 8, generator) + 8 * _bytes(place.shape, 0, 2, generator)
    return quant.pack_e2m1(_filled(place, codes, columns))


GENERATORS = {
    "fp8xfp4": Generators(_x_e4m3, _normal_micro_scaled, _exact_e2m1, lambda k: 0.5),
    "mxf4xmxf4": Generators(_x_e2m1, _normal_micro_scaled, partial(_exact_e2m1, token=_E2M1_RMS), lambda k: 0.25),
    "nvfp4xnvfp4": Generators(_x_nvfp4, _normal_nvfp4, _exact_nvfp4, lambda k: 0.25),
    "mxfp8xmxfp8": Generators(_x_e4m3, _normal_micro_scaled, _exact_e4m3, lambda k: 1.0),
    "fp8xfp8": Generators(_x_fp8, _normal_fp8, _exact_fp8, lambda k: 1.0),
    "fp8xmxfp4": Generators(_x_fp8, _normal_fp4, _exact_fp4, lambda k: 0.5),
    "bf16xbf16": Generators(_x_bf16, _normal_bf16, _exact_bf16, _bf16_unit),
}
