"""What DeepGEMM's kernels of both architectures share on the host: the symmetric buffer's order, the table of peers, template arguments."""

from __future__ import annotations

import struct
from math import inf

from megamoe_dsl.problem import Problem

MAX_RANKS = 72  # places for ranks in its table of peers


def buffer_offsets(problem: Problem, workspace: int, pool: int, scale_rows: int, **more: int) -> dict[str, int]:
    """Byte offset of every buffer, one after another behind a workspace of so many bytes, and `end`.

    pool, scale_rows  rows of the pool and of its scales
    more              bytes of buffers after combine
    """
    p, tokens = problem, problem.max_tokens_per_rank
    sizes = {
        "x": p.hidden * tokens,
        "x_sf": p.hidden // 32 * tokens,
        "topk_idx": 8 * p.topk * tokens,
        "topk_weights": 4 * p.topk * tokens,
        "fc1_acts": p.hidden * pool,
        "fc1_sf": p.hidden // 32 * scale_rows,
        "fc1_topk_weights": 4 * pool,
        "fc2_acts": p.intermediate * pool,
        "fc2_sf": p.intermediate // 32 * scale_rows,
        "combine": 2 * p.hidden * p.topk * tokens,
        **more,
    }
    found, at = {}, workspace
    for name, size in sizes.items():
        found[name], at = at, at + size
    return {**found, "end": at}


def peer_table(addresses: list[int], rank: int) -> bytes:
    """Its SymBuffer: a rank's own address, every rank's distance from it, the rank."""
    distances = [address - addresses[rank] for address in addresses] + [0] * (MAX_RANKS - len(addresses))
    return struct.pack(f"<q{MAX_RANKS}qII", addresses[rank], *distances, rank, 0)


def template_arguments(*values: object) -> str:
    """C++ template arguments: numbers, truth values, and types or enumerators as text."""
    return ", ".join(_argument(value) for value in values)


def _argument(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "cute::numeric_limits<float>::infinity()" if value == inf else f"{float(value)!r}f"
    return str(value)


def clamp_of(problem: Problem) -> float:
    """The clamp as DeepGEMM takes it: infinite without one."""
    return inf if problem.activation_clamp is None else float(problem.activation_clamp)


def kernel_source(header: str, kernel: str, *arguments: object) -> str:
    """CUDA that makes the compiler emit a kernel's instance."""
    instance = f"{kernel}<{template_arguments(*arguments)}>"
    return f"""#include <deep_gemm/{header}>
using namespace deep_gemm;
static void instantiate() {{ auto pointer = reinterpret_cast<void*>(&{instance}); }}
"""
