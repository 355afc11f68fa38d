"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class TopExpertsArguments:
    """What a router says, and which experts that makes.

    logits, bias  f32 or bf16 [num_tokens, num_experts]; f32 [num_experts], or 0
    topk_idx, topk_weights  i64 and f32 [num_tokens, topk], the highest first
    """

    logits: Int64
    bias: Int64
    topk_idx: Int64
    topk_weights: Int64
    num_tokens: Int32


@dataclass(frozen=True)
class PlacedExpertsArguments(TopExpertsArguments):
    """With a table of each id's experts, i32 hash_table [hash_rows, topk] for i64 token_ids [num_tokens], or one of the places of each
    expert, i32 replicas [num_experts, most], then -1; 0 for none.  A token's number and `replica_shift` choose among places in turn."""

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
    sources, positions  i32 [rows], the token of each row; i32 [num_tokens, topk], the row of each slot, -1 where it is masked
    table, counter  i32 [sorters, num_experts], for counts of the CTAs that sort; u32, at which these meet: 0 before the launch and after
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
    The factor is one f32."""

    factor: Int64


@dataclass(frozen=True)
class QuantizeArguments:
    """Rows, and what they become.

    x                  bf16 [tokens, hidden], 16-byte aligned
    sources            i32 [num_rows], the token of each row, or -1, where rows are gathered; else 0
    codes, scales      e4m3 [num_rows, hidden] and f32 [hidden / 128, num_rows], 8- and 4-byte aligned; 0 where only columns are wanted
    codes_t, scales_t  e4m3 [hidden, num_rows] and f32 [num_rows / 128, hidden], 16- and 8-byte aligned
    num_rows           a multiple of 128
    """

    x: Int64
    sources: Int64
    codes: Int64
    scales: Int64
    codes_t: Int64
    scales_t: Int64
    num_rows: Int32


@dataclass(frozen=True)
class WeightArguments:
    """Matrices, and what they become.

    w       bf16 [num_matrices, n, k], 16-byte aligned
    codes   e4m3 [num_matrices, n, k], or transposed [.., k, n]
    scales  f32 [num_matrices, n / 128, k / 128], or transposed
    """

    w: Int64
    codes: Int64
    scales: Int64
    num_matrices: Int32


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
