"""Scales of weights in DeepGEMM's layout: four UE8M0 a word, words M-major."""

from __future__ import annotations

import torch

from ...problem import ProblemError
from .names import refuse

_MANTISSA = 23  # bits of FP32
_LOWEST = 1 << (_MANTISSA - 1)  # 2^-127, the only subnormal that UE8M0 has


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int,
    k: int,
    recipe: tuple[int, ...],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scales of weights as the transforms of weights take them.

    recipe  rows and channels of a scale; of three numbers the first with `is_sfa` and otherwise the second, and the third

    sf      float32 [E, mn, k / 32] with recipe (1, 32), powers of two, or [E, mn / 128, k / 128] with recipe (128, 128) and
            `disable_ue8m0_cast`; without E where num_groups is None
    Returns int32 [E, mn, k / 128], strides of M-major words, or the FP32 scales as they are.

    Raises `ProblemError` for another recipe or shape, and for scales that are no powers of two from 2^-127 to 2^127, or FP32 scales that
    are negative, infinite or NaN: nothing is rounded.
    """
    refuse("psum_layout", psum_layout, "None: it is for rows of tokens")
    recipe = (recipe[0 if is_sfa else 1], recipe[2]) if len(recipe) == 3 else tuple(recipe)
    lead = () if num_groups is None else (num_groups,)
    if recipe == (128, 128) and disable_ue8m0_cast:
        _check_scales(sf, (*lead, -(-mn // 128), -(-k // 128)))
        _require_all(sf.isfinite() & (sf >= 0), sf, "finite and not negative")
        return sf.contiguous()
    if recipe != (1, 32) or disable_ue8m0_cast:
        raise ProblemError("recipe", recipe, "(1, 32), or (128, 128) with disable_ue8m0_cast")
    _check_scales(sf, (*lead, mn, k // 32))
    bits = sf.contiguous().view(torch.int32)
    exponent, fraction = bits >> _MANTISSA, bits & ((1 << _MANTISSA) - 1)  # a sign makes the exponent negative
    whole = (fraction == 0) & (exponent > 0) & (exponent < 255)
    _require_all(whole | (bits == _LOWEST), sf, "powers of two from 2^-127 to 2^127, which UE8M0 holds")
    words = exponent.to(torch.uint8).view(torch.int32)
    return words.transpose(-1, -2).contiguous().transpose(-1, -2)


def scale_bytes(sf: torch.Tensor) -> torch.Tensor:
    """int32 [E, rows, K/128], of any strides, as uint8 [E, rows, K/32].  Raises `ProblemError`."""
    if sf.dtype != torch.int32 or sf.dim() != 3:
        raise ProblemError("weight scales", f"{sf.dtype} {tuple(sf.shape)}", "int32 [E, rows, K/128], four UE8M0 a word")
    return sf.contiguous().view(torch.uint8)


def scale_words(sf: torch.Tensor) -> torch.Tensor:
    """int32 [E, rows, K/128], M-major, as the words [E * K/128, rows] that they are.  Raises `ProblemError` where that takes a copy."""
    if sf.dtype != torch.int32 or sf.dim() != 3 or not sf.transpose(1, 2).is_contiguous():
        raise ProblemError("weight scales", f"{sf.dtype} {tuple(sf.shape)}, strides {sf.stride()}", "int32 [E, rows, K/128], M-major")
    return sf.transpose(1, 2).flatten(0, 1)


def _check_scales(sf: torch.Tensor, shape: tuple[int, ...]) -> None:
    if sf.dtype != torch.float32 or tuple(sf.shape) != shape:
        raise ProblemError("sf", f"{sf.dtype} {tuple(sf.shape)}", f"float32 {shape}")


def _require_all(right: torch.Tensor, sf: torch.Tensor, allowed: str) -> None:
    """Raises `ProblemError` that names the first scale that is not right."""
    if not bool(right.all()):
        raise ProblemError("sf", sf[~right][0].item(), allowed)
