"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class TopExpertsArguments:
    """What a router says, and which experts that makes.

    logits        f32 or bf16 [num_tokens, num_experts]
    bias          f32 [num_experts], or 0
    topk_idx      i64 [num_tokens, topk], the highest first
    topk_weights  f32 [num_tokens, topk]
    """

    logits: Int64
    bias: Int64
    topk_idx: Int64
    topk_weights: Int64
    num_tokens: Int32


@dataclass(frozen=True)
class PlacedExpertsArguments(TopExpertsArguments):
    """Where a table names a token's experts, or the places of each expert.

    token_ids     i64 [num_tokens], or 0
    hash_table    i32 [hash_rows, topk]: the experts of each id, or 0
    replicas      i32 [num_experts, replicas]: the places of each expert, then -1, or 0
    replica_shift added to a token's number, which chooses among places in turn
    """

    token_ids: Int64
    hash_table: Int64
    replicas: Int64
    hash_rows: Int32
    replica_shift: Int32


@dataclass(frozen=True)
class RouteArguments:
    """What tokens are, and what they become.

    x           bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx    i64, or i32, [num_tokens, topk]; what is no expert masks a slot
    x_q, x_sf   e4m3 [num_tokens, hidden] and f32 [num_tokens, hidden / 128], 8- and 4-byte aligned; on SM100 e4m3 or e2m1 and ue8m0
                [num_tokens, hidden / 32]
    ends        i32 [num_experts], where each expert's rows end
    sources     i32 [rows], the token of each row
    positions   i32 [num_tokens, topk], the row of each slot, -1 where it is masked
    table       i32 [sorters, num_experts], for counts of the CTAs that sort
    counter     u32, at which these meet: 0 before the launch and after
    """

    x: Int64
    topk_idx: Int64
    x_q: Int64
    x_sf: Int64
    ends: Int64
    sources: Int64
    positions: Int64
    table: Int64
    counter: Int64
    num_tokens: Int32


@dataclass(frozen=True)
class FactoredRouteArguments(RouteArguments):
    """Of tokens in a number format with a factor of the whole matrix; x_q, x_sf are then e2m1 and ue4m3 [num_tokens, hidden / 16].

    factor      f32, one
    """

    factor: Int64


@dataclass(frozen=True)
class SumArguments:
    """Results of experts, and their sums.

    rows        bf16 [rows, hidden], 16-byte aligned
    positions   i32 [num_tokens, topk], the row of each slot, -1 where it is masked
    weights     f32, or bf16, [num_tokens, topk]
    y           bf16 [num_tokens, hidden], 16-byte aligned
    """

    rows: Int64
    positions: Int64
    weights: Int64
    y: Int64
    num_tokens: Int32
