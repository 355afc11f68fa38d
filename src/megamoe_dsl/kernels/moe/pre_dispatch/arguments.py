"""Run-time arguments of the inputs stage; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class PreDispatchArguments:
    """Of one rank.

    sym            this rank's symmetric buffer
    x              bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx       i64 [num_tokens, topk]
    topk_weights   f32 [num_tokens, topk]
    num_tokens     tokens of this rank
    padded_tokens  at least num_tokens: rows up to here are masked
    """

    sym: Int64
    x: Int64
    topk_idx: Int64
    topk_weights: Int64
    num_tokens: Int32
    padded_tokens: Int32


@dataclass(frozen=True)
class QuantizedArguments(PreDispatchArguments):
    """For tokens that are quantized already: x is e4m3, 8-byte aligned, or packed e2m1, 4-byte aligned; x_sf are their scales, K-major,
    4-byte aligned."""

    x_sf: Int64


@dataclass(frozen=True)
class SharedArguments(PreDispatchArguments):
    """With shared experts, whose slots `topk_idx` and `topk_weights` are without: first_shared is the number of the rank's first."""

    first_shared: Int32


@dataclass(frozen=True)
class SharedQuantisedArguments(QuantizedArguments):
    """Arguments for a rank with shared experts whose tokens come with scales."""

    first_shared: Int32
