"""DeepGEMM's k-grouped FP8 GEMM for SM90 by its headers: nvcc compiles the kernel, this script launches it.  Its own library does not load
beside torch 2.11 (0.2.5), or asks for more shared memory than there is (0.1.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from cuda.bindings import driver

from cuda_headers import CudaHeaders
from megamoe_dsl.hardware.tensor_map import TensorMap, TensorMapDtype
from megamoe_dsl.kernels.kernel import ArgumentSpec
from megamoe_dsl.runtime.cuda_kernel import DESCRIPTOR_BYTES, ArgumentBlock, call, current_stream, encode_tensor_map

HEADER = "deep_gemm/impls/sm90_fp8_gemm_1d1d.cuh"
BLOCK_K, LOADERS, MULTIPLIERS, STORED_ROWS = 128, 128, 256, 64
SMEM = 227 << 10
FLAGS = ("--ptxas-options=--register-usage-level=10",)
"""Beside those of all headers: what its own compiler passes."""
POINTERS, NUMBERS, MAPS = ("a", "b", "counts", "maps"), ("m", "n", "k"), ("map_a", "map_b", "map_sfa", "map_sfb", "map_d")


@dataclass(frozen=True)
class KGroupedTile:
    """Rows and columns of a CTA's tile, and which side two CTAs of a cluster share, if any: `a`, `b` or neither."""

    block_m: int
    block_n: int
    shared: str = ""

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}{self.shared and f', {self.shared} shared'}"

    @property
    def cluster(self) -> int:
        return 1 + bool(self.shared)

    @property
    def stage_bytes(self) -> int:
        """Codes and scales of both sides."""
        return (self.block_m + self.block_n) * (BLOCK_K + 4)

    @property
    def fixed_bytes(self) -> int:
        """Two tensor maps and FP32 results."""
        return 2 * DESCRIPTOR_BYTES + 4 * self.block_m * self.block_n

    @property
    def num_stages(self) -> int:
        """As many as fit, each with two barriers."""
        return (SMEM - self.fixed_bytes) // (self.stage_bytes + 16)

    @property
    def smem_bytes(self) -> int:
        return self.fixed_bytes + self.num_stages * (self.stage_bytes + 16)


TILES = (KGroupedTile(128, 128), KGroupedTile(128, 128, "a"), KGroupedTile(128, 128, "b"))


@dataclass(frozen=True)
class KGroupedKernel:
    """D [groups, m, n] += A[g] B[g]^T."""

    headers: CudaHeaders
    m: int
    n: int
    groups: int
    tile: KGroupedTile
    num_sms: int

    @property
    def source(self) -> str:
        one = self.tile
        numbers = (self.m, self.n, 0, self.groups, one.block_m, one.block_n, BLOCK_K, 128, 128, one.num_stages, LOADERS, MULTIPLIERS)
        values = (*numbers, one.cluster, str(one.shared == "a").lower(), self.num_sms, "GemmType::KGroupedContiguous", "float")
        kernel = f"sm90_fp8_gemm_1d1d_impl<{', '.join(map(str, values))}>"
        return f"""#include <{HEADER}>
using namespace deep_gemm;
static void instantiate() {{ auto pointer = reinterpret_cast<void*>(&{kernel}); }}
"""

    @property
    def cubin(self) -> bytes:
        """Raises HeadersError."""
        return self.headers.cubin(self.source, "sm_90a", FLAGS)

    @cached_property
    def function(self) -> Any:
        """On the current device."""
        library = call(driver.cuLibraryLoadData, self.cubin, [], [], 0, [], [], 0)
        (kernel,) = call(driver.cuLibraryEnumerateKernels, 1, library)
        found = call(driver.cuKernelGetFunction, kernel)
        smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, found, smem, self.tile.smem_bytes)
        return found

    def maps(self, sides: Sequence[tuple[torch.Tensor, torch.Tensor]], counts: Sequence[int], d: torch.Tensor) -> list[TensorMap]:
        """In the order of its parameters.  Those of codes are of the first group that has rows: the kernel replaces address and width."""
        first, blocks, found = next(filter(None, counts)), sum(counts) // BLOCK_K, list[TensorMap]()
        shapes = tuple(zip((self.m, self.n), (self.tile.block_m, self.tile.block_n), strict=True))
        for (codes, _), (rows, box) in zip(sides, shapes, strict=True):
            found.append(TensorMap(codes.data_ptr(), TensorMapDtype.U8, (first, rows), (first,), (BLOCK_K, box), 128, 256))
        for (_, scales), (rows, box) in zip(sides, shapes, strict=True):
            found.append(TensorMap(scales.data_ptr(), TensorMapDtype.F32, (rows, blocks), (4 * rows,), (box, 1), 0, 256))
        dims, box = (self.n, self.m * self.groups), (self.tile.block_n, STORED_ROWS)
        return [*found, TensorMap(d.data_ptr(), TensorMapDtype.F32, dims, (4 * self.n,), box, 0, 256)]

    def launch(self, sides: Sequence[tuple[torch.Tensor, torch.Tensor]], counts: Sequence[int], d: torch.Tensor) -> Any:
        """What launches it on torch's current stream.  A side has its groups' codes [m or n, rows of the group], one after another, and
        float32 scales [rows / 128, m or n]."""
        device, one = d.device.index, self.tile
        lengths = torch.tensor(counts, dtype=torch.int32, device=d.device)
        kept = lengths, torch.empty(self.num_sms * 2 * DESCRIPTOR_BYTES, dtype=torch.uint8, device=d.device)
        pointers = [each.data_ptr() for each in (sides[0][0], sides[1][0], *kept)]
        kinds = (("Int64", POINTERS), ("Int32", NUMBERS), ("TensorMap", MAPS))
        block = ArgumentBlock(ArgumentSpec(tuple((name, kind) for kind, names in kinds for name in names)))
        block.fill([*pointers, self.m, self.n, sum(counts), *map(encode_tensor_map, self.maps(sides, counts, d))])
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.num_sms, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = LOADERS + MULTIPLIERS, 1, 1
        config.sharedMemBytes = one.smem_bytes
        cluster = driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = one.cluster, 1, 1
        config.attrs, config.numAttrs = [cluster], 1

        def run(kept: Any = (sides, kept)) -> None:
            config.hStream = current_stream(device)
            call(driver.cuLaunchKernelEx, config, self.function, block.address, 0)

        return run
