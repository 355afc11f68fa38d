"""DeepGEMM's SM100 MegaMoE as a launch: template arguments, symmetric buffer, tensor maps, kernel arguments.

What its host code chooses is chosen here: one wave of all experts, a pool for the worst case, few stages so that the ring wraps in short
runs.  The size of its workspace is what its own header says; the buffers behind it follow one another.  Two releases are known: 0.1.5 of
sgl-deep-gemm with the public repository of June 2026, and 0.2.5, whose kernel has shared experts and other activations, which stay off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from cuda_headers import CudaHeaders
from deep_gemm_buffer import buffer_offsets, clamp_of, kernel_source, peer_table
from deep_gemm_headers import SM100_KERNEL
from megamoe_dsl.arch import SM100
from megamoe_dsl.cases import Case
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import TransformedWeights, transform_weights

BLOCK_N, BLOCK_K = 128, 128
STAGES = 4
SF_ATOM_ROWS = 128
ROLE_THREADS = 128  # of dispatch, and of loaders and MMA
TILES = {16: (8, 2), 32: (16, 2), 64: (32, 1), 96: (16, 2), 128: (32, 2), 192: (32, 2)}
"""BLOCK_M to tokens of a store and epilogue warpgroups."""


@dataclass(frozen=True)
class DeepGemmSm100:
    """A kernel for one problem and tile; `problem.max_tokens_per_rank` is the buffer's capacity.

    Raises `ProblemError` for a shape that its scale rows do not allow.
    """

    headers: CudaHeaders
    problem: Problem
    block_m: int
    num_sms: int = 4

    arch = SM100
    cluster = 2
    dynamic_smem = 227 << 10

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate"):
            if getattr(self.problem, name) % 512:
                raise ProblemError(name, getattr(self.problem, name), "a multiple of 512: DeepGEMM's rows of scales have 16 bytes")

    @cached_property
    def newest(self) -> bool:
        """Whether the release is the later of the two."""
        return self.headers.has(SM100_KERNEL, "kNumSharedExperts")

    @property
    def num_threads(self) -> int:
        """Of a CTA."""
        return 2 * ROLE_THREADS + 128 * TILES[self.block_m][1]

    @property
    def sf_block_m(self) -> int:
        """Words of scales of a tile and 128 channels."""
        return align(self.block_m, SF_ATOM_ROWS)

    # --- the symmetric buffer
    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of the pool and of its scales, and bytes of the workspace, by its own headers."""
        p = self.problem
        program = f"""#include <algorithm>
#include <cstdio>
#include <deep_gemm/layout/mega_moe.cuh>
using namespace deep_gemm::layout;
int main() {{
    const unsigned pool = get_num_max_pool_tokens<unsigned>({p.num_ranks}, {p.max_tokens_per_rank}, {p.topk}, {p.experts_per_rank});
    unsigned scales = 0;
    for (unsigned block_m : kCandidateBlockM) scales = std::max(scales, get_num_sf_ring_tokens<unsigned>(pool, block_m));
    const Workspace workspace(nullptr, {p.num_ranks}, {p.num_experts}, {p.max_tokens_per_rank}, {p.topk}, pool);
    std::printf("%u %u %llu", pool, scales, (unsigned long long) workspace.get_num_bytes());
}}"""
        pool, scales, workspace = self.headers.numbers(program)
        return pool, scales, workspace

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every buffer, and `end`."""
        pool, scales, workspace = self.sizes
        outer_scales = 4 * (self.problem.max_tokens_per_rank + pool)
        return buffer_offsets(self.problem, workspace, pool, scales, outer_scales=outer_scales, domains=self.num_sms)

    def prepare(self, sym: torch.Tensor) -> None:
        """What the host writes into a rank's zeroed buffer, once: the part of the GPU's memory that each SM is near to, by clusters."""
        near = torch.arange(self.num_sms) // self.cluster % 2
        sym[self.offsets["domains"] :][: self.num_sms] = near.to(torch.uint8)

    def weights(self, case: Case, rank: int) -> TransformedWeights:
        """Its order is that of this package."""
        given = case.weights[rank]
        return transform_weights(self.problem, self.arch, given.fc1, given.fc1_sf, given.fc2, given.fc2_sf)

    # --- the kernel
    @property
    def source(self) -> str:
        """CUDA that makes the compiler emit the kernel."""
        p, (pool, scales, _), (store_m, warpgroups) = self.problem, self.sizes, TILES[self.block_m]
        tile = (self.block_m, BLOCK_N, BLOCK_K)
        rings = (pool, scales, STAGES, min(p.hidden, 4096), ROLE_THREADS, ROLE_THREADS, 128 * warpgroups, self.num_sms, p.num_ranks)
        shape: tuple[object, ...] = (p.max_tokens_per_rank, p.hidden, p.intermediate, p.num_experts)
        rest: tuple[object, ...]
        if self.newest:
            options = (
                0.0,
                False,
                p.fast_math,
                False,
                False,
                False,
                False,
                False,
            )  # the activation's alpha, another activation; more scales
            stores = (store_m, store_m, self.sf_block_m, BLOCK_N, "MmaKind::MXFP8FP4")
            rest = (0, p.topk, *tile, *stores, *rings, clamp_of(p), *options, "cutlass::detail::float_e2m1_unpacksmem_t")
        else:
            rest = (p.topk, p.experts_per_rank, *tile, store_m, self.sf_block_m, BLOCK_N, *rings, clamp_of(p), p.fast_math)
        return kernel_source(SM100_KERNEL, "sm100_fp8_fp4_mega_moe_impl", *shape, *rest)

    def ptx(self) -> str:
        """Of the kernel.  Raises HeadersError."""
        return self.headers.ptx(self.source, "sm_100a")

    def tensor_maps(self, sym: int, weights: TransformedWeights) -> list[TensorMap]:
        """In the order of its parameters; `sym` is the address of the rank's buffer."""
        p, (pool, scales, _), local = self.problem, self.sizes, self.problem.experts_per_rank
        at = {name: sym + offset for name, offset in self.offsets.items()}

        def rows(address: int, width: int, box: tuple[int, int], swizzle: int) -> TensorMap:
            return TensorMap(address, TensorMapDtype.U8, (width, pool), (width,), box, swizzle)

        def words(address: int, width: int, height: int, box: int) -> TensorMap:
            return TensorMap(address, TensorMapDtype.U32, (width, height), (4 * width,), (box, 1))

        def nibbles(address: int, k: int, n: int) -> TensorMap:
            row = k // 2
            if self.newest:  # halves of an expert's rows, which may lie in two parts of the GPU's memory
                dims, strides = (k, n // 2, 2, local), (row, row * (n // 2), row * n)
                return TensorMap(address, TensorMapDtype.FP4_UNPACKED, dims, strides, (BLOCK_K, BLOCK_N, 1, 1), 128)
            return TensorMap(address, TensorMapDtype.FP4_UNPACKED, (k, local * n), (row,), (BLOCK_K, BLOCK_N), 128)

        def phase(acts: str, k: int, n: int, matrix: int, matrix_scales: int) -> list[TensorMap]:
            return [
                rows(at[f"{acts}_acts"], k, (BLOCK_K, self.block_m // 2), 128),
                words(at[f"{acts}_sf"], scales, k // 128, self.sf_block_m),
                nibbles(matrix, k, n),
                words(matrix_scales, n, local * k // 128, BLOCK_N),
            ]

        fc1 = phase("fc1", p.hidden, 2 * p.intermediate, weights.fc1.data_ptr(), weights.fc1_sf.data_ptr())
        fc2 = phase("fc2", p.intermediate, p.hidden, weights.fc2.data_ptr(), weights.fc2_sf.data_ptr())
        return [*fc1, rows(at["fc2_acts"], p.intermediate, (BLOCK_N // 2, TILES[self.block_m][0]), 64), *fc2]

    def arguments(self, sym: list[int], rank: int, y: int, stats: int, tokens: int, weights: TransformedWeights) -> tuple[int | bytes, ...]:
        """Of a launch; addresses of all ranks' buffers, of y and of the statistics."""
        maps = [one.encode() for one in self.tensor_maps(sym[rank], weights)]
        if not self.newest:
            return (y, stats, tokens, peer_table(sym, rank), *maps)
        shared_experts = maps  # there are none, and their maps are never used
        return (y, stats, 0, 0, 0, 0, tokens, peer_table(sym, rank), *maps, *shared_experts, sym[rank] + self.offsets["domains"])
