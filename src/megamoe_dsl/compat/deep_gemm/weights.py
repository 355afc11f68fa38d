"""Weights in the order of each architecture's kernel, and their scales, four UE8M0 a word, words M-major, under DeepGEMM's names."""

from __future__ import annotations

import torch

from ...arch import SM100
from ...problem import ProblemError
from ...quant import interleave_gate_up, order_rows_sm90, pack_tiles, tile_sm90, tile_sm100, ue8m0_bytes, utccp_scale_order
from ...quant.formats import require_tensor
from ...recipe import E2M1, RECIPES
from .names import activation_of, mma_type_of, refuse

_MANTISSA = 23  # bits of FP32
_LOWEST = 1 << (_MANTISSA - 1)  # 2^-127, the only subnormal that UE8M0 has
Weights = tuple[torch.Tensor, ...]
"""Codes and scales of one linear, and its bias, float32 [E, rows], where both linears have one."""
_CODES = {True: (torch.int8, torch.uint8), False: (torch.float8_e4m3fn,)}
"""Of weights, by whether they are E2M1."""


def transform_weights_for_mega_moe_sm90(l1_weights: Weights, l2_weights: Weights) -> tuple[Weights, Weights]:
    """For SM90: `fp8_mega_moe`, or with weights of 4 bits `fp8_fp4_mega_moe` on a buffer of mma_type fp8xmxfp4.

    l1_weights  e4m3 [E, 2I, H], rows [gate | up], and float32 [E, 2I/128, H/128]; or int8 or uint8 [E, 2I, H/2], two E2M1 a byte, and
                UE8M0, int32 [E, 2I, H/128], or uint8 or float8_e8m0fnu [E, 2I, H/32]
    l2_weights  e4m3 [E, H, I] and float32 [E, H/128, I/128]; or the same of 4 bits

    Returns weights as tiles, e4m3 [E, 2I/256, H/128, 256, 128] and [E, H/256, I/128, 256, 128], and the given scales.  The order differs
    from DeepGEMM's, and so does the shape, which tells them apart.  4-bit tiles, uint8 [E, N/256, K/128, 17408], contain their scales; the
    returned scales are then empty.  Raises ValueError for shapes that are no multiples, and for scales that 4-bit tiles cannot have.
    """
    (fc1, fc1_sf, *bias), (fc2, fc2_sf, *bias2) = l1_weights, l2_weights
    ordered = (order_rows_sm90(one.unsqueeze(-1)).squeeze(-1) for one in bias)
    if fc1.dtype not in _CODES[True]:
        return (tile_sm90(order_rows_sm90(fc1)), fc1_sf.contiguous(), *ordered), (tile_sm90(fc2), fc2_sf.contiguous(), *bias2)
    rows = order_rows_sm90(torch.arange(fc1.shape[1], device="cpu").view(-1, 1)).flatten()
    tiles = [
        pack_tiles(codes.view(torch.uint8), scale_bytes(scales) if scales.dtype == torch.int32 else ue8m0_bytes(scales), name, order)
        for codes, scales, name, order in ((fc1, fc1_sf, "l1_weights", rows), (fc2, fc2_sf, "l2_weights", None))
    ]
    return (tiles[0], tiles[0].new_empty(0), *ordered), (tiles[1], tiles[1].new_empty(0), *bias2)


def transform_weights_for_mega_moe(
    l1_weights: Weights, l2_weights: Weights, activation: str = "swiglu", mma_type: str = "fp8xfp4"
) -> tuple[Weights, Weights]:
    """For `fp8_fp4_mega_moe` on SM100.

    l1_weights  int8 or uint8 [E, 2I, H/2], two E2M1 a byte, of fp8xfp8 e4m3 [E, 2I, H], rows [gate | up], and int32 [E, 2I, H/128],
                M-major, four UE8M0 each, as `transform_sf_into_required_layout` returns them
    l2_weights  the same of [E, H, I]

    Returns weights as tiles, uint8 [E, 2I/128, H/128, 128, 64] and [E, H/128, I/128, 128, 64], of fp8xfp8 e4m3 with rows of 128, and scales
    as DeepGEMM makes them.  The order of weights differs from DeepGEMM's, and so does the shape, which tells them apart.  Raises
    `ProblemError`, and ValueError for shapes that are no multiples.
    """
    activation_of(activation)
    recipe = RECIPES[mma_type_of(mma_type, SM100).recipe]
    (fc1, fc1_sf, *bias), (fc2, fc2_sf, *bias2) = l1_weights, l2_weights
    allowed = _CODES[recipe.weights.element == E2M1]
    for name, codes in (("l1_weights", fc1), ("l2_weights", fc2)):
        if codes.dtype not in allowed:
            words = recipe.weights.element.upper()
            raise ProblemError(
                f"{name}[0].dtype", codes.dtype, f"{' or '.join(map(str, allowed))}: {SM100} takes weights in {words} with {mma_type}"
            )
    tiles = [tile_sm100(one.view(torch.uint8) if one.dtype == torch.int8 else one) for one in (interleave_gate_up(fc1), fc2)]
    ordered = (interleave_gate_up(one.unsqueeze(-1)).squeeze(-1) for one in bias)
    return (tiles[0], _utccp(interleave_gate_up(scale_bytes(fc1_sf))), *ordered), (tiles[1], _utccp(scale_bytes(fc2_sf)), *bias2)


def _utccp(scales: torch.Tensor) -> torch.Tensor:
    """uint8 [E, rows, K/32] to int32 [E, rows, K/128], M-major, rows in the order of UTCCP within each 128."""
    experts, rows, _ = scales.shape
    return utccp_scale_order(scales).view(experts, -1, rows).transpose(1, 2)


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
        require_tensor("sf", sf, torch.float32, (*lead, -(-mn // 128), -(-k // 128)))
        _require_all(sf.isfinite() & (sf >= 0), sf, "finite and not negative")
        return sf.contiguous()
    if recipe != (1, 32) or disable_ue8m0_cast:
        raise ProblemError("recipe", recipe, "(1, 32), or (128, 128) with disable_ue8m0_cast")
    require_tensor("sf", sf, torch.float32, (*lead, mn, k // 32))
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


def _require_all(right: torch.Tensor, sf: torch.Tensor, allowed: str) -> None:
    """Raises `ProblemError` that names the first scale that is not right."""
    if not bool(right.all()):
        raise ProblemError("sf", sf[~right][0].item(), allowed)
