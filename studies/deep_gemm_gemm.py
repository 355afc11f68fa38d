"""DeepGEMM's FP8 GEMM for SM90 with the scales of ours (A per row and 128 of K, B per 128 x 128) as a launch on the tensors of a case.

Of what its host code chooses by shape, tiles and pairs are given here, and the ring has four stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from cuda_headers import CudaHeaders
from deep_gemm_buffer import kernel_source
from megamoe_dsl.bench.gemm.case import GemmCase

from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, DENSE, MASKED, ROW_BLOCK, SCALE_BLOCK
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.layouts.arith import align, ceil_div
from megamoe_dsl.sim import Assumptions, GlobalMemory, Launch, Report, Simulator

HEADER = "impls/sm90_fp8_gemm_1d2d.cuh"
KINDS = {DENSE: "Normal", CONTIGUOUS: "MGroupedContiguous", MASKED: "MGroupedMasked"}
STAGES = 4
LOADER_THREADS = 128
SCALE_STEP = 4  # rows of A's scales are a multiple of it, for TMA
PADDING = Assumptions(load_uninitialised=True)
"""A tile loads the scales of a second row of B where it has none, and does not use them."""
BARRIER_BYTES = 16 * 2 * 8  # that its host code keeps


@dataclass(frozen=True)
class GemmTile:
    """Rows of A and of B of a tile, and what a pair of CTAs fetches together: `a`, `b`, or nothing where there are no pairs."""

    block_m: int
    block_n: int
    shared: str = ""

    @property
    def cluster(self) -> int:
        """CTAs of a pair, or 1."""
        return 2 if self.shared else 1

    @property
    def math_threads(self) -> int:
        """Threads that multiply."""
        return 128 if self.block_m <= 64 else 256

    @property
    def swizzle(self) -> int:
        """Bytes of D's span in SMEM: the widest that divides a row."""
        return next(span for span in (128, 64, 32, 16) if 2 * self.block_n % span == 0)

    def dynamic_smem(self, k_blocks: int) -> int:
        """Bytes of a CTA."""
        stage = (self.block_m + self.block_n) * SCALE_BLOCK + align(4 * self.block_m, 128)
        scales = align(4 * k_blocks * (1 if SCALE_BLOCK % self.block_n == 0 else 2), 8)
        return align(2 * self.block_m * self.block_n, 1024) + BARRIER_BYTES + scales + STAGES * stage


TILES = (GemmTile(64, 96), GemmTile(128, 112), GemmTile(128, 192, "b"), GemmTile(128, 128, "a"), GemmTile(256, 64))


def gemm_source(headers: CudaHeaders, case: GemmCase, tile: GemmTile, num_sms: int) -> str:
    """CUDA that makes the compiler emit the kernel; M is an argument of the launch."""
    p = case.problem
    shape = (0, p.n, p.k, p.num_groups, tile.block_m, tile.block_n, SCALE_BLOCK, SCALE_BLOCK, SCALE_BLOCK, tile.swizzle)
    how = (STAGES, LOADER_THREADS, tile.math_threads, tile.cluster, tile.shared == "a", num_sms, f"GemmType::{KINDS[p.kind]}")
    older = () if headers.has(HEADER, "SF_GRAN") else ("epilogue::transform::EpilogueIdentity",)
    return kernel_source(HEADER, "sm90_fp8_gemm_1d2d_impl", "cute::UMMA::Major::K", *shape, *how, "cutlass::bfloat16_t", *older)


def row_scales(case: GemmCase) -> torch.Tensor:
    """Scales of A as it reads them: float32 [groups of a masked problem x k / 128, rows rounded up to 4]."""
    given = case.tensors.a_sf if case.problem.kind == MASKED else case.tensors.a_sf[None]
    groups, rows, blocks = given.shape
    out = torch.zeros(groups, blocks, align(rows, SCALE_STEP))
    out[:, :, :rows] = given.transpose(1, 2)
    return out.flatten(0, 1)


def gemm_arguments(
    case: GemmCase, tile: GemmTile, a_sf: torch.Tensor, d: torch.Tensor, groups: torch.Tensor | None
) -> tuple[int | bytes, ...]:
    """Of a launch; `a_sf` of `row_scales`, `groups` the group of every row, or rows of every group."""
    p, t = case.problem, case.tensors

    def rows(tensor: torch.Tensor, dtype: TensorMapDtype, box: tuple[int, int], swizzle: int) -> bytes:
        width, size = tensor.shape[-1], tensor.element_size()
        return TensorMap(
            tensor.data_ptr(), dtype, (width, tensor.numel() // width), (size * width,), (min(box[0], swizzle // size), box[1]), swizzle
        ).encode()

    scales = TensorMap(a_sf.data_ptr(), TensorMapDtype.F32, a_sf.T.shape, (4 * a_sf.shape[1],), (tile.block_m, 1)).encode()
    maps = (
        rows(t.a, TensorMapDtype.U8, (SCALE_BLOCK, tile.block_m), SCALE_BLOCK),
        rows(t.b, TensorMapDtype.U8, (SCALE_BLOCK, tile.block_n), SCALE_BLOCK),
        rows(d, TensorMapDtype.BF16, (tile.block_n, tile.block_m), tile.swizzle),
        scales,
    )
    return (t.b_sf.data_ptr(), 0 if groups is None else groups.data_ptr(), t.a.shape[-2], p.n, p.k, *maps)


def run_gemm(headers: CudaHeaders, case: GemmCase, tile: GemmTile, num_sms: int) -> tuple[torch.Tensor, Report]:
    """One launch: D, bf16 of the shape of the case's, and what the simulator saw.

    Raises SimError, and HeadersError when nvcc refuses.
    """
    p, t = case.problem, case.tensors
    groups = t.groups.repeat_interleave(ROW_BLOCK) if p.kind == CONTIGUOUS and t.groups is not None else t.groups
    d, a_sf, memory = torch.empty_like(t.d), row_scales(case), GlobalMemory()
    for name, tensor in {"a": t.a, "a_sf": a_sf, "b": t.b, "b_sf": t.b_sf, "groups": groups}.items():
        if tensor is not None:
            memory.add(tensor, name=name, read_only=True)
    memory.add(d, name="d", initialised=False)
    launch = Launch(
        grid=(num_sms, 1, 1),
        block=(LOADER_THREADS + tile.math_threads, 1, 1),
        cluster=(tile.cluster, 1, 1),
        dynamic_smem=tile.dynamic_smem(ceil_div(p.k, SCALE_BLOCK)),
        args=gemm_arguments(case, tile, a_sf, d, groups),
    )
    return d, Simulator(headers.ptx(gemm_source(headers, case, tile, num_sms), "sm_90a"), memory, assumptions=PADDING).run([launch])
