"""Tensor maps as parameters of a kernel: made by the launching function, found by the kernel."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.experimental.cuda as cuda
from cutlass import Int32, Int64

from ..hardware.map_fields import MapFields
from ..hardware.tensor_map import TensorMapDtype
from .ptx import emit_to

SWIZZLES = {0: cuda.TensorMapSwizzle.none, 32: cuda.TensorMapSwizzle.s32b, 64: cuda.TensorMapSwizzle.s64b, 128: cuda.TensorMapSwizzle.s128b}
PROMOTIONS = {128: cuda.TensorMapL2Promotion.l2_128b, 256: cuda.TensorMapL2Promotion.l2_256b}
TYPES = {
    TensorMapDtype.U8: cutlass.Uint8,
    TensorMapDtype.U32: cutlass.Uint32,
    TensorMapDtype.F32: cutlass.Float32,
    TensorMapDtype.BF16: cutlass.BFloat16,
    TensorMapDtype.FP4_UNPACKED: cutlass.Float4E2M1FNx2,
}
FORMATS = {TensorMapDtype.FP4_UNPACKED: cuda.TensorMapDataFormat.B4X16_P64}


def make_map(fields: MapFields) -> Any:
    """A tensor map by the DSL's own means, from traced integers."""
    return cuda.create_tensor_map_tiled(
        fields.address,
        TYPES[fields.dtype],
        [Int32(extent) for extent in fields.dims],
        [Int64(stride) // 16 for stride in fields.strides],
        list(fields.box),
        swizzle=SWIZZLES[fields.swizzle],
        l2_promotion=PROMOTIONS[fields.l2_promotion],
        tma_format=FORMATS.get(fields.dtype),
    )


def address(tensor_map: Any) -> Any:
    """Address of a tensor map among the kernel's parameters, as a number that loops and branches can carry."""
    return emit_to(Int64, "mov.b64 {}, {};", tensor_map.get_ptr())
