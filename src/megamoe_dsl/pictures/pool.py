"""The token pool: blocks of rows, which experts fill."""

from __future__ import annotations

from ..kernels.moe.config import MegaMoeConfig
from ..kernels.moe.layouts.pool import pool_blocks, pool_tokens
from .chart import Bar, BarChart, Lane, Picture
from .subject import sample_counts

EXPERTS = 24  # lanes of the picture


def draw_pool(config: MegaMoeConfig, tokens: int) -> Picture:
    """The first experts have a lane each; the others share one, without bars, that says how many they are."""
    counts, block_m = sample_counts(config, tokens), config.block_m
    first = pool_blocks(counts, block_m)
    shown = min(len(counts), EXPERTS)
    lanes = []
    for expert, count in enumerate(counts[:shown]):
        start, end = first[expert] * block_m, first[expert + 1] * block_m
        details = (str(count), str(first[expert]), str(end - start - count))
        lanes.append(Lane(f"expert {expert}", _blocks(start, end, count, block_m), details))
    used, rows = first[-1] * block_m, pool_tokens(config.problem)
    note = (
        f"Rows of the token pool for a sampled routing of {tokens} tokens a rank: blocks of {block_m} rows, one after "
        f"another, never shared by two experts. All {len(counts)} experts use {used:,} of {rows:,} rows, {used - sum(counts):,} of them "
        "padding."
    )
    if used > rows:
        note += " The pool is a ring: rows are used again when the results of their tokens have left."
    if shown < len(counts):
        rest, padding = sum(counts[shown:]), used - first[shown] * block_m - sum(counts[shown:])
        lanes.append(Lane(f"{len(counts) - shown} more", (), (str(rest), str(first[shown]), str(padding))))
        note += (
            f" Drawn are experts 0 to {shown - 1}; the other {len(counts) - shown}, from row {first[shown] * block_m:,} on, are left out."
        )
    extent = max(1, first[shown] * block_m)
    return Picture("Token pool", note, (BarChart(tuple(lanes), extent, "rows", ("tokens", "first block", "padding")),))


def _blocks(start: int, end: int, count: int, block_m: int) -> tuple[Bar, ...]:
    """Tokens and padding of each block of an expert."""
    bars = []
    for block in range(start, end, block_m):
        filled = min(block + block_m, start + count)
        bars += [Bar(block, filled, "tokens"), Bar(filled, block + block_m, "padding")]
    return tuple(bar for bar in bars if bar.end > bar.start)
