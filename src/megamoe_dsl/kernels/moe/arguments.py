"""Run-time arguments of a launch on one rank; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class Arguments:
    """Of both architectures.

    sym              this rank's symmetric buffer (layouts/symmetric.py)
    peers            u64[num_ranks]: the address of every rank's symmetric buffer, as this rank sees it
    maps             table of tensor maps (maps.py)
    y                bf16 [num_tokens, hidden], the output
    stats            i32[experts_per_rank] to which received tokens are added, or 0
    num_tokens       tokens of this rank
    rank             this rank's index
    watchdog         record for a wait that exceeds its limit (layouts/records.py)
    watchdog_ns      the limit in nanoseconds
    trace            stamps of a traced kernel (layouts/records.py), or 0
    """

    sym: Int64
    peers: Int64
    maps: Int64
    y: Int64
    stats: Int64
    num_tokens: Int32
    rank: Int32
    watchdog: Int64
    watchdog_ns: Int64
    trace: Int64


@dataclass(frozen=True)
class Sm90Arguments(Arguments):
    """Adds the FP32 weight scales: fc1_sf f32 [El, 2I / 128, H / 128] (gate blocks, then up blocks), fc2_sf f32 [El, H / 128, I / 128]."""

    fc1_sf: Int64
    fc2_sf: Int64


@dataclass(frozen=True)
class BiasedArguments(Sm90Arguments):
    """Of a layer with biases, on both architectures: fc1_bias f32 [El, 2I] in the order of the weights' rows, fc2_bias f32 [El, H].  Where
    weight scales are in the weights' tiles or have tensor maps, the other two have no use."""

    fc1_bias: Int64
    fc2_bias: Int64


@dataclass(frozen=True)
class StageArguments(Arguments):
    """Those of the fused kernel, and `results`: what Linear1 and Linear2 leave for the stage after them (unfused/stage.py)."""

    results: Int64


@dataclass(frozen=True)
class ScaledStageArguments(Sm90Arguments):
    """The same of a linear stage whose weights have FP32 scales beside them."""

    results: Int64


@dataclass(frozen=True)
class BiasedStageArguments(BiasedArguments):
    """The same of any linear stage of a layer with biases."""

    results: Int64
