"""Run-time arguments of a launch on one rank; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class GemmCombineArguments:
    """As `DispatchGemmArguments`, with

    acts        e4m3 [P, intermediate], by the rows of Linear1's result; what lies between experts does not matter
    acts_sf     f32 [intermediate / 128, P]
    weights     e4m3 [El, hidden, intermediate]
    weights_sf  f32 [El, hidden / 128, intermediate / 128]
    y           bf16 [num_tokens, hidden]
    num_tokens  tokens of this rank
    """

    sym: Int64
    peers: Int64
    acts: Int64
    acts_sf: Int64
    weights: Int64
    weights_sf: Int64
    y: Int64
    num_tokens: Int32
    rank: Int32
    watchdog: Int64
    watchdog_ns: Int64


@dataclass(frozen=True)
class RoutingTablesArguments:
    """As `DispatchGemmArguments`; num_tokens are this rank's, whose experts are in its symmetric buffer."""

    sym: Int64
    peers: Int64
    num_tokens: Int32
    rank: Int32
    watchdog: Int64
    watchdog_ns: Int64


@dataclass(frozen=True)
class DispatchGemmArguments:
    """P = pool rows (layouts/symmetric.py), El = local experts.  Formats are those of fp8xfp8; of bf16xbf16 operands are bf16, and nobody
    reads scales.

    sym          this rank's symmetric buffer (layouts/symmetric.py)
    peers        u64[num_ranks]: the address of every rank's symmetric buffer, as this rank sees it
    weights      e4m3 [El, 2 intermediate, hidden]
    weights_sf   f32 [El, 2 intermediate / 128, hidden / 128]
    out          bf16 [P, 2 intermediate]: Linear1 of every row; what lies between experts is left alone
    rank         this rank's index
    watchdog     record for a wait that exceeds its limit (layouts/records.py)
    watchdog_ns  the limit in nanoseconds
    """

    sym: Int64
    peers: Int64
    weights: Int64
    weights_sf: Int64
    out: Int64
    rank: Int32
    watchdog: Int64
    watchdog_ns: Int64


@dataclass(frozen=True)
class TracedDispatchGemmArguments(DispatchGemmArguments):
    """A traced kernel gets `trace` as well, memory for its stamps (layouts/records.py)."""

    trace: Int64


@dataclass(frozen=True)
class TracedGemmCombineArguments(GemmCombineArguments):
    """A traced kernel gets `trace` as well, memory for its stamps (layouts/records.py)."""

    trace: Int64
