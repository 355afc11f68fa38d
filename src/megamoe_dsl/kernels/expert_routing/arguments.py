"""Run-time arguments of a launch; pointers are 64-bit addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...blocks.gemm.arguments import OPTIONAL

if TYPE_CHECKING:
    from cutlass import Int32, Int64


@dataclass(frozen=True)
class TopExpertsArguments:
    """A router's logits, and the chosen experts with their weights."""

    logits: Int64  # f32 or bf16 [num_tokens, num_experts]
    bias: Int64  # f32 [num_experts], or 0
    topk_idx: Int64  # i64 [num_tokens, topk], the highest first
    topk_weights: Int64  # f32 [num_tokens, topk]
    num_tokens: Int32
    # with a table of each id's experts, or one of the places of each expert
    token_ids: Int64 = OPTIONAL  # i64 [num_tokens], or 0
    hash_table: Int64 = OPTIONAL  # i32 [hash_rows, topk], or 0
    replicas: Int64 = OPTIONAL  # i32 [num_experts, most], the places, then -1; or 0
    hash_rows: Int32 = OPTIONAL
    replica_shift: Int32 = OPTIONAL  # with a token's number chooses among places in turn


@dataclass(frozen=True)
class RouteArguments:
    """BF16 tokens, their quantized form, and the order of their slots by expert."""

    x: Int64  # bf16 [num_tokens, hidden], 16-byte aligned
    topk_idx: Int64  # i64, or i32, [num_tokens, topk]; what is no expert masks a slot
    x_q: Int64  # e4m3, on SM100 also e2m1, [num_tokens, hidden], 8-byte aligned
    x_sf: Int64  # f32 [num_tokens, hidden / 128], 4-byte aligned; on SM100 ue8m0 [num_tokens, hidden / 32]
    ends: Int64  # i32 [num_experts], where each expert's rows end
    sources: Int64  # i32 [rows], the token of each row
    positions: Int64  # i32 [num_tokens, topk], the row of each slot, -1 where it is masked
    table: Int64  # i32 [sorters, num_experts], for counts of the CTAs that sort
    counter: Int64  # u32, at which these meet: 0 before the launch and after
    num_tokens: Int32
    # one f32, of tokens in a number format with a factor of the whole matrix; x_q, x_sf are then e2m1 and ue4m3 [num_tokens, hidden / 16]
    factor: Int64 = OPTIONAL


@dataclass(frozen=True)
class QuantizeArguments:
    """BF16 rows, and their codes and scales along rows and along columns."""

    x: Int64  # bf16 [tokens, hidden], 16-byte aligned
    sources: Int64  # i32 [num_rows], the token of each row, or -1, where rows are gathered; else 0
    codes: Int64  # e4m3 [num_rows, hidden], 8-byte aligned; 0 where only columns are wanted
    scales: Int64  # f32, or words of UE8M0, [hidden / 128, num_rows], of several matrices each, 4-byte aligned; likewise 0
    codes_t: Int64  # e4m3 [hidden, num_rows], 16-byte aligned, of several matrices each; 0 where only rows are wanted
    scales_t: Int64  # f32, or words, [num_rows / 128, hidden], 8-byte aligned; likewise 0
    num_rows: Int32  # a multiple of 128


@dataclass(frozen=True)
class WeightArguments:
    """BF16 weight matrices, and their codes and scales."""

    w: Int64  # bf16 [num_matrices, n, k], 16-byte aligned
    codes: Int64  # e4m3 [num_matrices, n, k], or transposed [.., k, n]
    scales: Int64  # f32 [num_matrices, n / 128, k / 128], or transposed
    num_matrices: Int32


@dataclass(frozen=True)
class SumArguments:
    """Rows that experts have computed, and the weighted sum of each token's."""

    rows: Int64  # bf16 [rows, hidden], 16-byte aligned
    positions: Int64  # i32 [num_tokens, topk], the row of each slot, -1 where it is masked
    weights: Int64  # f32, or bf16, [num_tokens, topk]
    y: Int64  # bf16 [num_tokens, width], from the first column that is summed on, 16-byte aligned
    num_tokens: Int32
