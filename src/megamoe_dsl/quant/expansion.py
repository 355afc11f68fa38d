"""E2M1 with a UE8M0 scale per 32 as E4M3 with an FP32 scale per 128 x 128: the same numbers, or an error.

Scales within 2^14 of the largest of their 128 x 128 block are always exact, those further away when their values need no bit that E4M3
lacks.  Blocks of zeros have any scale.
"""

import torch
from torch.nn.functional import pad

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.quant.block128 import FP32_SCALE_BLOCK
from megamoe_dsl.quant.formats import SCALE_BLOCK, _require_blocks, _require_scales, e2m1_values, encode_e4m3, unpack_e2m1

from .weights import ExpertWeights

_BIAS = 127
_ROOM = 6  # 6 * 2^6 = 384 is E4M3, 6 * 2^7 is not
_LOWEST = -126  # of a normal FP32 number
_FAR = -40  # further than any E4M3, and no underflow in FP32


def expand_e2m1(packed: torch.Tensor, sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values in E4M3: float8_e4m3fn [..., rows, K], and float32 powers of two [..., ceil(rows / 128), ceil(K / 128)].

    Takes packed E2M1, uint8 [..., rows, K / 2], low nibble first, with UE8M0 scales [..., rows, K / 32]; K is a multiple of 32.

    Raises `ProblemError` for a wrong dtype or shape, a scale of 255 (NaN), and values that E4M3 does not have, naming the first block and
    its scales: nothing is rounded.
    """
    codes = unpack_e2m1(packed)
    block = FP32_SCALE_BLOCK
    _require_blocks("packed", codes.shape[-1], SCALE_BLOCK)
    _require_scales("sf", codes, sf, SCALE_BLOCK)
    rows, k = codes.shape[-2:]
    more = -k % block, -rows % block  # zeros, in the last blocks
    codes = pad(codes, (0, more[0], 0, more[1]))
    exponent = pad(sf.view(torch.uint8), (0, more[0] // SCALE_BLOCK, 0, more[1])).to(torch.int32)
    if bool((exponent == 255).any()):
        raise ProblemError("sf", 255, "at most 254: in UE8M0 255 is NaN")
    values = e2m1_values(torch.float32).to(codes.device)[codes.to(torch.int32)].unflatten(-1, (-1, SCALE_BLOCK))
    exponent = exponent - _BIAS
    counted = torch.where(values.any(dim=-1), exponent, -(1 << 20)).unflatten(-2, (-1, block)).unflatten(-1, (-1, block // SCALE_BLOCK))
    largest = counted.amax(dim=(-3, -1))  # [..., rows / 128, K / 128]
    base = torch.where(largest > -(1 << 20), (largest - _ROOM).clamp(min=_LOWEST), 0)
    spread = base.repeat_interleave(block, -2).repeat_interleave(block // SCALE_BLOCK, -1)
    shift = (exponent - spread).clamp(min=_FAR, max=_ROOM)  # the blocks above are of zeros
    exact = torch.ldexp(values, shift.unsqueeze(-1))
    found = encode_e4m3(exact)
    lost = (found.to(torch.float32) != exact).any(dim=-1)
    if bool(lost.any()):
        place = lost.nonzero()[0].tolist()
        at = (*place[:-2], place[-2] // block, place[-1] // (block // SCALE_BLOCK))
        here, most, count = int(exponent[tuple(place)]), int(largest[at]), int(lost.sum())
        raise ProblemError(
            f"sf{place}",
            f"2^{here} beside 2^{most} in block {list(at)} of 128 x 128",
            f"a scale with which all values are E4M3 numbers ({count} of {lost.numel()} blocks of {SCALE_BLOCK} have others); keep the "
            "weights in E2M1",
        )
    return found.flatten(-2)[..., :rows, :k].contiguous(), torch.ldexp(torch.ones_like(base, dtype=torch.float32), base)


def fp8_weights(weights: ExpertWeights) -> ExpertWeights:
    """E2M1 weights as E4M3 with a scale per 128 x 128, for kernels that take no FP4.  Gate and up have blocks of their own; biases stay."""
    codes, scales = [], []
    for packed, sf, parts in ((weights.fc1, weights.fc1_sf, 2), (weights.fc2, weights.fc2_sf, 1)):
        both = (packed.unflatten(-2, (parts, -1)), sf.unflatten(-2, (parts, -1)))
        experts = [expand_e2m1(*one) for one in zip(*both, strict=True)]
        codes.append(torch.stack([one.flatten(0, 1) for one, _ in experts]))
        scales.append(torch.stack([one.flatten(0, 1) for _, one in experts]))
    return ExpertWeights(codes[0], scales[0], codes[1], scales[1], weights.fc1_bias, weights.fc2_bias)
