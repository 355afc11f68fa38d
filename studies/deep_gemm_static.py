"""Instructions of DeepGEMM's SM100 kernel with packed activations (W4A4), from its compiled code, for the table of docs/w4a4.md.

    git clone https://github.com/sgl-project/DeepGEMM build/DeepGEMM && git -C build/DeepGEMM checkout e9d5329    # pull request 44
    python studies/deep_gemm_static.py build/DeepGEMM --cutlass CUTLASS/include

nvcc of CUDA 13 and nvdisasm are needed, no GPU.  Counts are static SASS instructions of a warp.  ptxas reaches its roles by indirect
branches, so that loops are not read from control flow as those of our kernels are: a loop is what lies between a backward branch and its
target, and the smallest one that holds what the role does is the role's.  A pass of an epilogue is the distance from one to the next.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

from cuda_headers import FLAGS, HeadersError, nvcc
from deep_gemm_headers import find_headers
from megamoe_dsl.sass.listing import Instruction, disassemble

ARCH = ("-cubin", "-lineinfo", "-gencode", "arch=compute_100a,code=sm_100a", "--ptxas-options=--register-usage-level=10")
KERNEL = "impls/sm100_fp4_mega_moe.cuh"
MMA_CHANNELS = 64  # of an MMA of packed values
APART = 20  # instructions between accumulator loads of two passes


@dataclass(frozen=True)
class PeerTile:
    """A tier of its heuristics: tokens of a tile, channels of a stage, tokens of an epilogue pass, stages."""

    block_m: int
    block_k: int
    store_block_m: int
    stages: int

    @property
    def source(self) -> str:
        """DeepSeek-V4-Flash on 8 ranks of 148 SMs."""
        sf_block_m = max(128, -(-self.block_m // 128) * 128)
        tile = f"{self.block_m}, 128, {self.block_k}, {self.store_block_m}, {sf_block_m}, 128"
        arguments = f"8192, 4096, 2048, 256, 6, 16, {tile}, 397312, 460000, {self.stages}, 128, 128, 256, 148, 8, 10.0f, true"
        return (
            f"#include <deep_gemm/{KERNEL}>\nusing namespace deep_gemm;\n"
            f"static void instantiate() {{ auto kernel = reinterpret_cast<void*>(&sm100_fp4_mega_moe_impl<{arguments}>); }}\n"
        )


TILES = (PeerTile(32, 256, 16, 10), PeerTile(96, 128, 16, 16), PeerTile(192, 256, 32, 6))


def code_of(tile: PeerTile, folders: Iterable[Path]) -> tuple[Instruction, ...]:
    """Disassembled.  Raises HeadersError where it does not compile."""
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(tile.source)
        includes = [f"-I{one}" for one in folders]
        done = subprocess.run([nvcc(), *ARCH, *FLAGS, *includes, "-o", str(made), str(text)], capture_output=True, text=True)
        if done.returncode:
            raise HeadersError(f"nvcc does not compile {KERNEL}: {(done.stdout + done.stderr)[-500:]}")
        return disassemble(made.read_bytes()).instructions


def places(code: Sequence[Instruction], operation: str) -> list[int]:
    """Indices of an operation."""
    return [i for i, one in enumerate(code) if re.fullmatch(operation, one.operation)]


def loops(code: Sequence[Instruction]) -> list[range]:
    """What lies between backward branches and their targets, the smallest first."""
    index = {one.address: i for i, one in enumerate(code)}
    found = {(index[one.target], i) for i, one in enumerate(code) if one.operation == "BRA" and index.get(one.target or 0, len(code)) <= i}
    return sorted((range(first, last + 1) for first, last in found), key=len)


def per_block(code: Sequence[Instruction], operation: str, each: int) -> list[float]:
    """Instructions per `each` of an operation of every smallest loop that has any."""
    at, found, covered = places(code, operation), [], set()
    for loop in loops(code):
        inside = [i for i in at if i in loop]
        if inside and not covered.intersection(inside) and len(inside) >= each:
            found.append(len(loop) * each / len(inside))
            covered.update(inside)
    return found


def passes(code: Sequence[Instruction]) -> tuple[float, float]:
    """Instructions of a pass of the Linear1 epilogue, from one of its stores to the next, and of Linear2's, whose passes come first, from
    accumulator loads to the next ones; NaN of a tile that has one pass."""
    loads, stores = places(code, "LDTM"), places(code, "UTMASTG")
    begins = [b for a, b in pairwise([-APART, *loads]) if b - a > APART and b < stores[0]]
    if len(stores) < 2 or len(begins) < 2:
        return float("nan"), float("nan")
    return mean(b - a for a, b in pairwise(stores)), min(b - a for a, b in pairwise(begins))


def combine(code: Sequence[Instruction]) -> list[int]:
    """Of a top-k slot, and of a token with one: the two smallest loops with a bulk copy and no tile's work."""
    other = {"LDTM", "UTCOMMA", "SHFL", "REDUX"}
    found = [(len(one), {code[i].operation for i in one}) for one in loops(code)]
    return [size for size, operations in found if operations >= {"UBLKCP", "LDS"} and not other & operations][:2]


def main() -> None:
    """Prints a line per tile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="a checkout with the kernel")
    parser.add_argument("--cutlass", type=Path, help="CUTLASS's include folder, with include/cccl of CUDA where nvcc does not find it")
    given = parser.parse_args()
    headers = find_headers(given.site, given.cutlass, Path(tempfile.gettempdir()))
    for tile in TILES:
        code = code_of(tile, (headers.own.parent, *headers.others))
        eights, (fc1, fc2) = tile.store_block_m / 8, passes(code)
        figures = {
            "MMA warp, K block": per_block(code, "UTCOMMA", tile.block_k // MMA_CHANNELS),
            "loaders, K block": per_block(code, "UTMALDG", 2),
            "Linear1 epilogue, 8 tokens": fc1 / eights,
            "Linear2 epilogue, 8 tokens": fc2 / eights,
            "dispatch, token": per_block(code, "UBLKCP", 2)[:1],
            "combine, slot and token": combine(code),
            "all": len(code),
        }
        print(f"{tile.block_m} ({tile.block_k}): {figures}")


if __name__ == "__main__":
    main()
