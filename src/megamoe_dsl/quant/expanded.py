"""E2M1 weights with UE8M0 scales as E4M3 with a scale per 128 x 128: what kernels need that have no use for 4 bits, in twice the memory."""

import torch

from megamoe_dsl.quant.block128 import FP32_SCALE_BLOCK
from megamoe_dsl.quant.formats import SCALE_BLOCK, dequantize_e2m1, encode_e4m3

_LARGEST = 6  # 6 * 2^6 = 384 is an E4M3 number


def expand_e2m1(packed: torch.Tensor, sf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of one matrix, exact where the scales of a 128 x 128 block lie within 2^14, else rounded to nearest.

    Args:
        packed: uint8 [rows, K / 2], two E2M1 a byte, rows and K multiples of 128.
        sf: uint8 [rows, K / 32], UE8M0.

    Returns:
        (float8_e4m3fn [rows, K], float32 [rows / 128, K / 128], powers of two).
    """
    block = FP32_SCALE_BLOCK
    largest = sf.unflatten(1, (-1, block // SCALE_BLOCK)).amax(dim=2).unflatten(0, (-1, block)).amax(dim=1)
    scale = torch.ldexp(torch.ones(largest.shape, device=sf.device), largest.to(torch.int32) - 127 - _LARGEST)
    values = dequantize_e2m1(packed, sf).float().unflatten(0, (-1, block)).unflatten(2, (-1, block))
    return encode_e4m3((values / scale[:, None, :, None]).flatten(2).flatten(0, 1)), scale
