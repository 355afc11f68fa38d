"""DeepGEMM's names of number formats and activations, with this project's recipes and activations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...activation import ACTIVATIONS, SILU
from ...arch import SM90, SM100, Arch
from ...problem import MAX_CLAMP, ProblemError

ACTIVATION_NAMES = {"swiglu": SILU, "swigluoai": "swigluoai", "situ": "situ"}


@dataclass(frozen=True)
class MmaType:
    """What a buffer's `mma_type` means on one architecture.

    recipe   number formats of the layer (recipe.py)
    call     DeepGEMM's function that runs it
    numbers  `recipe` of that function
    """

    recipe: str
    call: str = "fp8_fp4_mega_moe"
    numbers: tuple[int, int, int] = (1, 1, 32)


_FP8_SM90 = MmaType("fp8xfp8", "fp8_mega_moe", (128, 128, 128))
MMA_TYPES = {
    SM90.name: {"fp8xfp4": _FP8_SM90, "fp8xfp8": _FP8_SM90, "fp8xmxfp4": MmaType("fp8xmxfp4")},
    SM100.name: {"fp8xfp4": MmaType("fp8xfp4"), "mxf4xmxf4": MmaType("mxf4xmxf4"), "fp8xfp8": MmaType("mxfp8xmxfp8")},
}
"""By architecture and DeepGEMM's name.  `fp8xfp4` is what its callers pass by default: on Hopper its buffer is FP8 x FP8."""


def mma_type_of(name: str, arch: Arch) -> MmaType:
    """The entry of `MMA_TYPES` for an architecture.  Raises `ProblemError` for an unknown name."""
    types = MMA_TYPES[arch.name]
    if name not in types:
        raise ProblemError("mma_type", name, f"one of {', '.join(types)} on {arch.name}")
    return types[name]


def activation_of(name: str) -> str:
    """This project's name of an activation.  Raises `ProblemError`."""
    if name not in ACTIVATION_NAMES:
        raise ProblemError("activation", name, " or ".join(map(repr, ACTIVATION_NAMES)))
    return ACTIVATION_NAMES[name]


def clamp_of(activation: str, clamp: float | None) -> float | None:
    """`activation_clamp` of a `Problem`.  None and infinity mean no clamp, also for an activation with a clamp by default."""
    if clamp is not None and clamp != math.inf:
        return clamp
    return None if ACTIVATIONS[activation].clamp is None else MAX_CLAMP


def refuse(name: str, value: Any, allowed: str) -> None:
    """Raises `ProblemError` unless the argument is None or False."""
    if value is not None and value is not False:
        raise ProblemError(name, value if isinstance(value, int) else "given", allowed)
