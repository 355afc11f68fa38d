"""The GEMM over the rows of groups in E4M3, and the quantization of both its operands' ways, on one GPU, beside DeepGEMM's GEMM and torch.

    python bench/k_grouped.py [SITE] [--shapes 7168x2048x32 ...] [--rows 16384 ...] [--turns N] [--cache FOLDER] [--out FOLDER]

SITE    folder with DeepGEMM's headers, as bench/beside_deep_gemm.py says: nvcc compiles three tiles of its kernel into the cache
shapes  N x K x groups: D is float32 [groups, N, K], to which sums are added

Groups have uneven multiples of 128 rows, the last one none.  Before anything is timed, sums are compared with float64's of the same codes,
and with DeepGEMM's bits; codes with `quantize_e4m3_f32`.  `grouped_mm` of torch multiplies as many BF16 numbers, `copy` moves bytes that
quantization moves: two a value read, two written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cuda_headers import CudaHeaders, HeadersError
from gemms.deep_gemm_k_grouped import HEADER, TILES, KGroupedKernel
from megamoe_dsl.bench.timing import REPEATS, time_back_to_back
from megamoe_dsl.quant import quantize_e4m3_f32
from megamoe_dsl.runtime.k_grouped_gemm import QuantizedBoth, k_grouped_gemm, quantize_both
from records import save_each
from script_options import at_least

SHAPES, ROWS = ("7168x2048x32", "4096x7168x32", "1536x2048x64"), (16384, 65536)
LAUNCHES = 4
OURS, THEIRS = "k_grouped_gemm", "deep_gemm"


def counts_of(rows: int, groups: int) -> list[int]:
    """Rows of each group."""
    shares = [(i % 3) + 2 for i in range(groups - 1)]
    blocks = [rows // 128 * share // sum(shares) for share in shares]
    blocks[0] += rows // 128 - sum(blocks)
    return [128 * one for one in (*blocks, 0)]


class Operands:
    """Rows of both sides on the GPU, sorted by group, and their codes."""

    def __init__(self, n: int, k: int, counts: list[int]) -> None:
        generator, self.counts = torch.Generator("cuda").manual_seed(n), counts
        draw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        self.rows = tuple(torch.randn(sum(counts), columns, **draw) for columns in (n, k))
        self.sides = tuple(map(quantize_both, self.rows))
        self.ends = torch.tensor(counts, device="cuda").cumsum(0).int()
        self.d = torch.zeros(len(counts), n, k, device="cuda")

    def ours(self) -> None:
        left, right = self.sides
        k_grouped_gemm(left.codes_t, left.scales_t, right.codes_t, right.scales_t, self.ends, self.d)

    def theirs(self, headers: CudaHeaders, d: torch.Tensor) -> dict[str, Callable[[], Any]]:
        """DeepGEMM's launches, of each tile: of each group a matrix of its own, one after another.  Raises HeadersError."""
        sides = [(torch.cat([part.flatten() for part in one.codes_t.split(self.counts, dim=1)]), one.scales_t) for one in self.sides]
        sms, (groups, m, n) = torch.cuda.get_device_properties(0).multi_processor_count, d.shape
        return {f"{THEIRS} {tile}": KGroupedKernel(headers, m, n, groups, tile, sms).launch(sides, self.counts, d) for tile in TILES}

    def error(self, d: torch.Tensor) -> float:
        """The relative distance of the first group's sums from float64's."""
        left, right = (
            one.codes_t[:, : self.counts[0]].double() * one.scales_t[: self.counts[0] // 128].T.double().repeat_interleave(128, dim=1)
            for one in self.sides
        )
        expected = left @ right.T
        return float((d[0] - expected).norm() / expected.norm())


def is_right(codes: QuantizedBoth, rows: torch.Tensor) -> bool:
    """Whether these are the codes and scales of rows."""
    along, across = quantize_e4m3_f32(rows), quantize_e4m3_f32(rows.T.contiguous())
    pairs = zip((codes.codes, codes.scales, codes.codes_t, codes.scales_t), (*along, across[0], across[1].T), strict=True)
    return all(torch.equal(one.float(), other.float()) for one, other in pairs if one is not None)


def run_point(shape: str, rows: int, turns: int, headers: CudaHeaders | None) -> dict[str, Any]:
    n, k, groups = map(int, shape.split("x"))
    made = Operands(n, k, counts_of(rows, groups))
    made.ours()
    first, errors = made.d.clone(), {OURS: made.error(made.d)}
    made.d.zero_()
    made.ours()
    same, calls = torch.equal(first, made.d), {OURS: made.ours}
    equal = {}
    if headers is not None:
        theirs = torch.zeros_like(made.d)
        for name, launch in made.theirs(headers, theirs).items():
            theirs.zero_()
            launch()
            calls[name], errors[name], equal[name] = launch, made.error(theirs), int((theirs != first).sum())
    left, right = made.rows
    calls["grouped_mm"] = lambda: torch._grouped_mm(left.T, right, offs=made.ends)
    calls["quantize_both"] = lambda: quantize_both(right)
    copied = torch.empty_like(right)
    calls["copy"] = lambda: copied.copy_(right)
    us = time_back_to_back(calls, LAUNCHES, turns)
    flop = 2.0 * rows * n * k
    return {
        "point": f"{shape}:{rows}",
        "gpu": torch.cuda.get_device_name(),
        "us": {name: asdict(one) for name, one in us.items()},
        "tflops": {name: flop / us[name].median / 1e6 for name in (*errors, "grouped_mm")},
        "errors": errors,
        "unequal": equal,
        "same_bits": same,
        "passed": same and errors[OURS] < 1e-3 and all(map(is_right, made.sides, made.rows)),
    }


def summary(record: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {one['median']:.0f} ({one['low']:.0f} to {one['high']:.0f})" for name, one in record["us"].items())
    rates = "  ".join(f"{name} {one:.0f}" for name, one in record["tflops"].items())
    found = f"errors {record['errors']}  sums unlike ours {record['unequal']}"
    return f"{record['point']} passed {record['passed']}: us {times}\n  TFLOPS {rates}\n  {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, nargs="?")
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--rows", nargs="*", type=at_least(128), default=ROWS)
    parser.add_argument("--turns", type=at_least(1), default=REPEATS)
    parser.add_argument("--cache", type=Path, default=Path("build/nvcc"), help="folder of nvcc's products")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    try:
        headers = given.site and CudaHeaders(given.site / "deep_gemm" / "include", HEADER, given.cache)
    except HeadersError as error:
        parser.error(str(error))
    points = (run_point(shape, rows, given.turns, headers) for shape, rows in product(given.shapes, given.rows))
    records = save_each(given.out, "k_grouped", points, summary)
    raise SystemExit(not all(record["passed"] for record in records))


if __name__ == "__main__":
    main()
