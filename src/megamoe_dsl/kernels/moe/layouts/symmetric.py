"""The symmetric buffer of one rank: workspace, inputs, pool and combine rows at the same offsets on every rank (article 3.3.2)."""

from __future__ import annotations

from functools import lru_cache

from ....arch import Arch
from ....hardware.operand_tile import CHANNELS_PER_WORD
from ....layouts.arith import Int, align, ceil_div
from ....layouts.region import BF16, F32, I64, U8, U32, Field, Region
from ....layouts.region import E4M3 as E4M3_CODES
from ....problem import Problem
from ....recipe import BITS, E2M1, E4M3, UE8M0, UNSCALED
from .combine_plan import CombineRow
from .pool import padded_sf_rows, pool_tokens
from .workspace import workspace

CODES = {E4M3: E4M3_CODES, E2M1: U8, UNSCALED.element: BF16}  # by element; two E2M1 share a byte
TMA_ALIGNMENT = 128  # bytes: bulk copies need 16; with 128 every field starts at a cache line


def scale_row(problem: Problem) -> int:
    """Scales from one token's to the next one's in x_sf: whole words of 32 bits, of which dispatch moves as many as a token has."""
    activations = problem.formats.activations
    assert activations.scale is not None  # activations of every recipe have one
    return align(activations.scales_of(problem.hidden), 32 // BITS[activations.scale])


@lru_cache
def symmetric_buffer(problem: Problem, arch: Arch) -> Region:
    """One rank's buffer.  T = max_tokens_per_rank, K = topk, H = hidden, I = intermediate, P = pool rows, P' = scale words per K block.

    | field           | shape          | written by | read by |
    |---|---|---|---|
    | x               | e4m3 [T, H]    | host       | dispatch of any rank |
    | x_sf            | u8 [T, H/32]   | host       | dispatch of any rank; K-major, rows filled up to whole words |
    | topk_idx        | i64 [T, K]     | host       | dispatch, combine; -1 masks a slot |
    | topk_weights    | f32 [T, K]     | host       | dispatch of any rank |
    | fc1_acts         | e4m3 [P, H]    | dispatch   | token loader |
    | fc1_sf           | u32 [H/128, P']| dispatch   | token loader; M-major, UTCCP order |
    | fc1_topk_weights | f32 [P]        | dispatch   | Linear1 epilogue |
    | fc2_acts         | e4m3 [P, I]    | Linear1 epilogue| token loader |
    | fc2_sf           | u32 [I/128, P']| Linear1 epilogue| token loader; M-major, UTCCP order |
    | combine         | bf16 [K, T, H] | Linear2 epilogue of any rank | combine |

    E2M1 activations: x u8 [T, H/2], fc1_acts u8 [P, H/2], fc2_acts u8 [P, I/2], two values in a byte.
    FP32 scales, one per 128 channels: x_sf f32 [T, H/128], fc1_sf and fc2_sf f32.  Without tensor memory P' = P: M-major in pool order.
    Either way there is one 32-bit word of scales per token and 128 channels, of which the last may be fewer.
    E4M3 results: combine u8 [K, T, row], H values, H/128 scales and what fills the last line of 128 bytes (combine_plan.py).
    """
    tokens, topk, hidden, intermediate = problem.max_tokens_per_rank, problem.topk, problem.hidden, problem.intermediate
    pool = pool_tokens(problem)
    words, between_words = (ceil_div(channels, CHANNELS_PER_WORD) for channels in (hidden, intermediate))
    sf_rows = padded_sf_rows(pool, problem.formats) if arch.has_tensor_memory else pool
    activations, between = problem.formats.activations, problem.formats.hidden
    word, scale = (U32, U8) if activations.scale == UE8M0 else (F32, F32)
    row = CombineRow(hidden, problem.formats.combine)
    results = ((topk, tokens, row.num_bytes), U8) if row.scaled else ((topk, tokens, hidden), BF16)
    return Region.stack(
        "symmetric buffer",
        workspace(problem, arch),
        Field("x", (tokens, activations.row_bytes(hidden)), CODES[activations.element], TMA_ALIGNMENT),
        Field("x_sf", (tokens, scale_row(problem)), scale, TMA_ALIGNMENT),
        Field("topk_idx", (tokens, topk), I64, TMA_ALIGNMENT),
        Field("topk_weights", (tokens, topk), F32, TMA_ALIGNMENT),
        Field("fc1_acts", (pool, activations.row_bytes(hidden)), CODES[activations.element], TMA_ALIGNMENT),
        Field("fc1_sf", (words, sf_rows), word, TMA_ALIGNMENT),
        Field("fc1_topk_weights", (pool,), F32, TMA_ALIGNMENT),
        Field("fc2_acts", (pool, between.row_bytes(intermediate)), CODES[between.element], TMA_ALIGNMENT),
        Field("fc2_sf", (between_words, sf_rows), word, TMA_ALIGNMENT),
        Field("combine", *results, TMA_ALIGNMENT),
    )


def map_to_rank(address: Int, own_base: Int, peer_base: Int) -> Int:
    """The peer's address of what this rank has at `address`: symmetric buffers agree in their offsets."""
    return address - own_base + peer_base
