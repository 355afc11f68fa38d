"""DeepGEMM's k-grouped GEMM where there is neither nvcc nor a GPU: what its kernel is instantiated with, and what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_headers import CudaHeaders
from gemms.deep_gemm_k_grouped import HEADER, SMEM, TILES, KGroupedKernel, KGroupedTile

COUNTS = (0, 256, 128)
NVCC = """#!/bin/sh
for last; do :; done
while [ "$1" != -o ]; do shift; done
printf '\\377' > "$2"
tail -n 2 "$last" >> "$2"
"""
"""Leaves a byte that is no text, and the end of its source."""


@pytest.fixture
def kernel(tmp_path: Path) -> KGroupedKernel:
    (tmp_path / HEADER).parent.mkdir(parents=True)
    (tmp_path / HEADER).touch()
    return KGroupedKernel(CudaHeaders(tmp_path, HEADER, tmp_path / "cache"), 384, 256, len(COUNTS), KGroupedTile(128, 64, "b"), 132)


def test_stages_fill_shared_memory() -> None:
    for tile in (*TILES, KGroupedTile(64, 128)):
        assert tile.smem_bytes <= SMEM < tile.smem_bytes + tile.stage_bytes + 16
    assert [tile.num_stages for tile in TILES] == [4, 4, 4]


def test_the_kernel_of_a_tile(kernel: KGroupedKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nvcc leaves is kept: the second time nobody calls it."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=":")
    wanted = "<384, 256, 0, 3, 128, 64, 128, 128, 128, 7, 128, 256, 2, false, 132, GemmType::KGroupedContiguous, float>"
    made = kernel.cubin
    assert made[:1] == b"\xff" and wanted.encode() in made
    nvcc.unlink()
    assert kernel.cubin == made


def test_its_tensor_maps(kernel: KGroupedKernel) -> None:
    """Codes of the first group with rows, scales of all, and results of which a warpgroup adds 64 rows."""
    rows = sum(COUNTS)
    sides = [(torch.zeros(columns * rows, dtype=torch.uint8), torch.zeros(rows // 128, columns)) for columns in (384, 256)]
    d = torch.zeros(len(COUNTS), 384, 256)
    maps = kernel.maps(sides, COUNTS, d)
    tensors = [codes for codes, _ in sides] + [scales for _, scales in sides] + [d]
    assert [one.address for one in maps] == [one.data_ptr() for one in tensors]
    assert [one.dims for one in maps] == [(256, 384), (256, 256), (384, 3), (256, 3), (256, 3 * 384)]
    assert [one.box for one in maps] == [(128, 128), (128, 64), (128, 1), (64, 1), (64, 64)]
    assert [one.swizzle for one in maps] == [128, 128, 0, 0, 0]
