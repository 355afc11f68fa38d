"""Run-time arguments of a stage on one rank; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arguments import Arguments, BiasedArguments, Sm90Arguments

if TYPE_CHECKING:
    from cutlass import Int64


@dataclass(frozen=True)
class StageArguments(Arguments):
    """Those of the fused kernel, and `results`: what Linear1 and Linear2 leave for the stage after them (results.py)."""

    results: Int64


@dataclass(frozen=True)
class ScaledStageArguments(Sm90Arguments):
    """The same of a linear stage whose weights have FP32 scales beside them."""

    results: Int64


@dataclass(frozen=True)
class BiasedStageArguments(BiasedArguments):
    """The same of any linear stage of a layer with biases."""

    results: Int64
