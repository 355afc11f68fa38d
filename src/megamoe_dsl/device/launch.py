"""The host function that launches a kernel: one for all kernels, made for the types of a kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute

from ..hardware.map_fields import MapFields
from .tensor_map import make_map

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
