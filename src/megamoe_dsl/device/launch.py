"""The host function that launches a kernel, made for the types of its arguments, and tensor maps as parameters: the launching function
makes them, the kernel finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import GridConstant, Int32, Int64

from ..hardware.tensor_map import MapFields, TensorMapDtype
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
CONFIG: Any = cutlass.Constexpr
FORMATS = {TensorMapDtype.FP4_UNPACKED: cuda.TensorMapDataFormat.B4X16_P64}


def make_map(fields: MapFields) -> Any:
    """A tensor map made by the DSL from traced integers."""
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


@cache
def map_addresses(names: tuple[str, ...]) -> type[Any]:
    return make_dataclass("MapAddresses", [(name, Int64) for name in names], frozen=True, namespace={"__module__": __name__})


def addresses(names: tuple[str, ...], maps: Sequence[Any]) -> Any:
    return map_addresses(names)(*map(address, maps))


@cache
def kernel_with_maps(run: Callable[..., None], names: tuple[str, ...]) -> Callable[..., Any]:
    """A `cute.kernel` of (configuration, a tensor map for each name, arguments); it calls `run` with configuration, arguments and maps."""

    def kernel(config, *operands):
        *maps, args = operands
        run(config, args, *maps)

    kinds: dict[str, Any] = {"config": CONFIG[Any], **dict.fromkeys(names, GridConstant[cuda.TensorMap]), "args": Any}
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in kinds.items()]
    kernel.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    kernel.__name__ = run.__name__
    return cute.kernel(kernel)


MapsOf = Callable[[Any, Any], Sequence[MapFields]]
"""(configuration, arguments) to the fields of the tensor maps that a kernel takes before its arguments."""


def launcher(kernel: Callable[..., Any], arguments: type[Any], maps_of: MapsOf, ctas_per_sm: int) -> Callable[..., Any]:
    """A function of (configuration, arguments, stream) that makes the tensor maps and launches `kernel` on the configuration's grid.

    kernel     a `cute.kernel` of (configuration, *tensor maps, arguments)
    arguments  the dataclass of the arguments: TVM FFI reads their types from the function's annotations
    """

    def launch(config: cutlass.Constexpr[Any], args: Any, stream: Any):
        maps = [make_map(fields) for fields in maps_of(config, args)]
        kernel(config, *maps, args).launch(
            grid=(config.num_sms, 1, 1),
            block=(config.num_threads, 1, 1),
            cluster=(config.cluster, 1, 1),
            min_blocks_per_mp=ctas_per_sm,
            stream=stream,
        )

    launch.__annotations__["args"] = arguments
    return cute.jit(launch)
