"""DeepGEMM's SM90 FP8 MegaMoE of sgl-deep-gemm 0.2.5 as a launch; see deep_gemm_sm100.py.

Its Linear1 scales are FP32 quotients, ours powers of two, so that results differ by the quantisation.  Of what its host code may choose
the plain things are chosen: one wave of all experts, a pool for the worst case, nothing early, no programmatic launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from cuda_headers import CudaHeaders
from deep_gemm_buffer import buffer_offsets, clamp_of, kernel_source, peer_table
from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import Case
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.layouts.arith import align, ceil_div
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import TransformedWeights, interleave_gate_up

SM90_KERNEL = "impls/sm90_fp8_mega_moe.cuh"
TILES = (64, 128)
BLOCK_N, BLOCK_K = 256, 128
STAGES = 3
DISPATCH_THREADS, LOADER_THREADS, MATH_THREADS = 64, 64, 256


@dataclass(frozen=True)
class DeepGemmSm90:
    """A kernel for one problem and tile; `problem.max_tokens_per_rank` is the buffer's capacity."""

    headers: CudaHeaders
    problem: Problem
    block_m: int
    num_sms: int = 4

    arch = SM90
    dynamic_smem = 227 << 10
    num_threads = DISPATCH_THREADS + LOADER_THREADS + MATH_THREADS

    @property
    def cluster(self) -> int:
        """CTAs that fetch weights together: a pair, with many tokens."""
        return 2 if self.block_m == 128 else 1

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of the pool and of its scales, and bytes of the workspace, by its own headers."""
        p = self.problem
        program = f"""#include <cstdio>
#include <deep_gemm/layout/sm90_mega_moe.cuh>
using namespace deep_gemm::layout;
int main() {{
    const unsigned pool = get_num_max_pool_tokens_sm90<unsigned>({p.num_ranks}, {p.max_tokens_per_rank}, {p.topk}, {p.experts_per_rank});
    const SM90Workspace workspace(nullptr, {p.num_ranks}, {p.num_experts}, {p.max_tokens_per_rank}, {p.topk}, pool);
    std::printf("%u %llu", pool, (unsigned long long) workspace.get_num_bytes());
}}"""
        pool, workspace = self.headers.numbers(program)
        return pool, max(ceil_div(pool, tile) * align(tile, 128) for tile in TILES), workspace

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every buffer, and `end`."""
        pool, scales, workspace = self.sizes
        return buffer_offsets(self.problem, workspace, pool, scales)

    def prepare(self, sym: torch.Tensor) -> None:
        """Zeros are all that it needs."""

    def weights(self, case: Case, rank: int) -> TransformedWeights:
        """Linear1 rows: 8 of gate, 8 of up, and so on; the rest as it is."""
        given = case.weights[rank]
        mixed = interleave_gate_up(given.fc1.view(torch.uint8)).view(given.fc1.dtype)
        return TransformedWeights(mixed, given.fc1_sf, given.fc2, given.fc2_sf)

    @property
    def source(self) -> str:
        """CUDA that makes the compiler emit the kernel."""
        p, (pool, scales, _), whole = self.problem, self.sizes, self.block_m == 128
        shape = (p.max_tokens_per_rank, p.hidden, p.intermediate, p.num_experts, p.topk, p.experts_per_rank)
        tile = (self.block_m, BLOCK_N, BLOCK_K, pool, scales, pool, STAGES, DISPATCH_THREADS, LOADER_THREADS, MATH_THREADS)
        grid = (self.num_sms, p.num_ranks, clamp_of(p), p.fast_math, 0)
        # Sums in the accumulator's registers, a counter in place of bits, then what the pair does, then Linear2's staging.
        passes, mode = (4, 2) if whole else (0, 0)
        how = (whole, whole, not whole, whole, self.cluster, self.cluster == 2, 0, passes, False, False, mode, False, 0, 1, False)
        return kernel_source(SM90_KERNEL, "sm90_fp8_mega_moe_impl", *shape, *tile, *grid, *how)

    def ptx(self) -> str:
        """Of the kernel.  Raises HeadersError."""
        return self.headers.ptx(self.source, "sm_90a")

    def arguments(self, sym: list[int], rank: int, y: int, stats: int, tokens: int, weights: TransformedWeights) -> tuple[int | bytes, ...]:
        """Of a launch; addresses of all ranks' buffers, of y and of the statistics."""
        p, (pool, scales, _), local = self.problem, self.sizes, self.problem.experts_per_rank
        at = {name: sym[rank] + offset for name, offset in self.offsets.items()}

        def rows(address: int, width: int, height: int, box: tuple[int, int], swizzle: int = 128) -> bytes:
            return TensorMap(address, TensorMapDtype.U8, (width, height), (width,), box, swizzle).encode()

        def phase(acts: str, k: int, n: int, matrix: torch.Tensor) -> tuple[bytes, bytes, bytes]:
            words = TensorMap(at[f"{acts}_sf"], TensorMapDtype.F32, (scales, k // 128), (4 * scales,), (self.block_m, 1))
            tokens_map = rows(at[f"{acts}_acts"], k, pool, (BLOCK_K, self.block_m))
            return tokens_map, words.encode(), rows(matrix.data_ptr(), k, local * n, (BLOCK_K, BLOCK_N))

        fc1 = phase("fc1", p.hidden, 2 * p.intermediate, weights.fc1)
        fc2 = phase("fc2", p.intermediate, p.hidden, weights.fc2)
        output = rows(at["fc2_acts"], p.intermediate, pool, (BLOCK_N // 2, 64), 128 if self.block_m == 128 else 0)
        scales_of = (weights.fc1_sf.data_ptr(), weights.fc2_sf.data_ptr())
        return (y, stats, tokens, peer_table(sym, rank), *fc1, scales_of[0], output, *fc2, scales_of[1], 0)
