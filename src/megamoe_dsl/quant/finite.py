"""NaN and infinities in the formats of a layer's inputs and weights.

No kernel looks for them, and what becomes of one is not specified: it may reach the output as NaN, or a clamp or a cast to E4M3, which
has no infinity, may hide it. It stays where it is used, in the outputs of its token or, among weights, of the tokens that its expert
takes. `not_finite` is what the checks that a caller may ask for have in common.
"""

import torch

_E4M3_NAN = 0x7F  # with either sign; e4m3fn has no infinity
_UE8M0_NAN = 0xFF


def not_finite(values: torch.Tensor) -> torch.Tensor:
    """Where values are NaN or infinite.

    Args:
        values: float8_e4m3fn, uint8 or float8_e8m0fnu (UE8M0 scales), or any float of 16 bits and more; any shape.

    Returns:
        bool of the same shape.
    """
    if values.dtype == torch.float8_e4m3fn:
        return values.view(torch.uint8).bitwise_and(0x7F) == _E4M3_NAN
    if values.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return values.view(torch.uint8) == _UE8M0_NAN
    return ~torch.isfinite(values)
