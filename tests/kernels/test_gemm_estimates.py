"""Clocks that a GEMM's tiles are estimated to take, by which they are chosen, to nine digits, and the bytes that a GEMM moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megamoe_dsl import ExpertLayer, GemmProblem
from megamoe_dsl.bench.gemm.point import GemmPoint
from megamoe_dsl.blocks.gemm.choose import NARROW, WIDE, cost, decoding_tiles
from megamoe_dsl.blocks.gemm.sm100.choose import CANDIDATES, clocks, memory_clocks
from megamoe_dsl.blocks.gemm.sm100.config import Sm100GemmConfig
from megamoe_dsl.kernels.expert_layer import uneven_tile
from megamoe_dsl.target import Target

DENSE, GROUPED = GemmProblem(4096, 7168), GemmProblem(2048, 1536, "packed", 8)
PACKED = GemmProblem(4096, 7168, "packed", 8, recipe="fp8xmxfp4")
PLAIN = [115436.9231, 44866.76923, 54188.92308, 44994.76923, 47570.76923, 18898.15385]
DECODING = [119264, 59664, 43161.45455, 119712, 80923.63636, 61855.27273, 312270.5455, 179790.4]
PAIRS = [
    *(2221.534808, 17772.27847, 169066.1705, 5728, 0, 12368, 126025.1429, 131278.2961, 88565.08527),
    *(3008, 0, 6328, 65316.57143, 60214.40156, 18126.63566, 628, 0, 1125.789062),
    *(24102.90476, 29484.92109, 935.379845, 458, 0, 665.5, 1050.285714, 1035.301563, 16114.10853),
    *(560, 0, 850.1953125, 15942.29252, 14264.46563),
]


def test_tiles_of_hopper() -> None:
    split = {**NARROW[3], "split_k": True}
    found = [cost(DENSE, [300], one, 132) for one in (NARROW[0], NARROW[6], WIDE[1], WIDE[6], split)]
    assert [*found, cost(GROUPED, [0, 1, 64, 65, 128, 129, 500, 3], NARROW[4], 132)] == pytest.approx(PLAIN, rel=1e-9)


def test_tiles_that_decode() -> None:
    found = [cost(PACKED, [rows] * 8, one, 132) for rows in (3, 60, 200) for one in decoding_tiles(PACKED, rows)[1::2]]
    assert found == pytest.approx(DECODING, rel=1e-9)


def test_tiles_of_pairs() -> None:
    layer, thin = (ExpertLayer(hidden, 2048, 8, 2, recipe="fp8xfp4") for hidden in (4096, 256))
    found = [memory_clocks(layer.fc1, rows) for rows in (1, 4000)]
    for problem in (layer.fc1, layer.fc2, thin.fc1, replace(thin.fc2, k=128), replace(thin, hidden=64, recipe="bf16xbf16").fc1):
        for rows, tile in ((4000, 0), (5, 1), (0, 1), (300, 6), (9000, 12), (9000, 4)):
            found.append(clocks(Sm100GemmConfig(problem, **CANDIDATES[tile]), rows))
    assert found == pytest.approx(PAIRS, rel=1e-9)


def test_tiles_of_uneven_groups() -> None:
    """44 rows on average, of which nearly every group has at most 64, are the columns of a tile; 48 are not."""
    found = [uneven_tile(GROUPED, Target.typical("sm_90a"), 8 * rows) for rows in (1, 44, 48)]
    assert [(one["block_m"], one.get("swap_ab", False)) for one in found] == [(16, True), (64, True), (128, False)]


def test_columns_that_are_summed_together() -> None:
    """As many as divide all, and have 512 MiB of results; all where the tensor core applies scales."""
    layer, odd = (ExpertLayer(hidden, 512, 8, 8) for hidden in (4096, 2304))
    assert [layer.columns(tokens) for tokens in (8192, 8193, 1 << 20)] == [4096, 2048, 256]
    assert [odd.columns(tokens) for tokens in (1, 20_000)] == [2304, 768]
    assert replace(layer, recipe="nvfp4xnvfp4").columns(1 << 20) == 4096


A, B, D = 10 * 128, 256 * 128, 10 * 256  # values of ten rows, of one matrix, and of the result
SUMS = {"output": "f32", "accumulate": True}


@pytest.mark.parametrize(
    ("problem", "counts", "num_bytes"),
    [
        (GemmProblem(256, 128), (10,), A + B + 2 * D),
        (GemmProblem(256, 128, "packed", 4, **SUMS, recipe="bf16xbf16"), (1, 0, 2, 7), 2 * A + 3 * 2 * B + 2 * 4 * D),
        (GemmProblem(256, 128, "packed", 4, recipe="fp8xmxfp4"), (0, 0, 5, 5), A + 2 * (B // 2 + B // 32) + 2 * D),
    ],
)
def test_bytes_of_ten_rows(problem: GemmProblem, counts: tuple[int, ...], num_bytes: int) -> None:
    """B of each group that has rows; sums in D are read and written."""
    assert GemmPoint(problem, counts).num_bytes == num_bytes
