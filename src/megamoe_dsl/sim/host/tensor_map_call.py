"""`cuTensorMapEncodeTiled` as host functions call it.  Source: CUDA driver API, "Tensor Map Object Management"."""

from __future__ import annotations

import ctypes

from ...hardware.tensor_map import TensorMap, TensorMapDtype
from ..errors import SimError

_SWIZZLES = (0, 32, 64, 128)
_L2_PROMOTIONS = (0, 64, 128, 256)


def encode_tiled(
    data_type: int,
    rank: int,
    address: int | None,
    dims: int,
    strides: int | None,
    box: int,
    element_strides: int,
    interleave: int,
    swizzle: int,
    l2_promotion: int,
    oob_fill: int,
) -> TensorMap:
    """The tensor map that a call asks for; enums as integers, arrays as addresses of uint64 (dims, strides) and uint32.

    Raises:
        SimError: a type, swizzle, interleave, fill or element stride that is not modelled.
        ValueError: a field breaks a limit of the hardware.
    """
    dtype = next((one for one in TensorMapDtype if one.driver_code == data_type), None)
    steps = (ctypes.c_uint32 * rank).from_address(element_strides)
    for field, value, allowed in (
        ("tensorDataType", data_type, dtype is not None),
        ("elementStrides", list(steps), all(step == 1 for step in steps)),
        ("interleave", interleave, interleave == 0),
        ("swizzle", swizzle, swizzle < len(_SWIZZLES)),
        ("oobFill", oob_fill, oob_fill == 0),
    ):
        if not allowed:
            raise SimError(f"cuTensorMapEncodeTiled: {field} = {value} is not modelled")
    assert dtype is not None
    return TensorMap(
        address=address or 0,
        dtype=dtype,
        dims=tuple((ctypes.c_uint64 * rank).from_address(dims)),
        strides=tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides)) if strides and rank > 1 else (),
        box=tuple((ctypes.c_uint32 * rank).from_address(box)),
        swizzle=_SWIZZLES[swizzle],
        l2_promotion=_L2_PROMOTIONS[l2_promotion],
    )
