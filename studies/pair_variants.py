"""Pairs of CTAs with E2M1 weights in a few other ways (docs/studies.md): same bits, other turns of a scheduler.

    python studies/pair_variants.py FOLDER --points flash:2048,flash:8192,pro:2048        where the DSL is: a folder of kernels for each way
    python bench/compare_kernels.py --recipe fp8xmxfp4 --repeats 15 --points flash:2048,flash:8192,pro:2048 FOLDER/*        on a GPU

fp8             FP8 weights
as_it_is        the kernel
math_first      math warps have the lowest indices
decode_first    decode warps have
late            a stage is given back when the first products of the next K block have been issued: decode warps then begin when math warps
                wait for the tensor core, and not while they promote
even_first      sums of even numbers are promoted before the others, for which ptxas finds registers with fewer conflicts
late_even_first both
swap            sums are promoted token by token, and of two neighbours the second first
ahead216        besides, scales and addresses of the next K block come with its tokens: no wgmma stands behind a multiplication that waits
                for shared memory
mid216          besides, the next K block is waited for when half of the last sums have been promoted
swap224, swap224_late, ahead224, mid224: the same with 224 registers of math threads and 32 of decode threads

Of every kernel it says what the multiply-adds of the K loop take of a register file that reads a register of even number and one of odd
number a clock, operands that the instruction before has read not counted (`.reuse`).  Volta's has two such banks (Jia et al., arXiv
1804.06826, section 3.4).  Each way is swapped in for one compilation, so that the package has no switch for it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pair_loops import Loop

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import FP8
from megamoe_dsl.bench.points import shares_of
from megamoe_dsl.kernels.moe.config import RegisterBudget
from megamoe_dsl.kernels.moe.sm90 import config, kernel
from megamoe_dsl.kernels.moe.sm90 import math as math_warps
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.sass.flow import Flow
from megamoe_dsl.sass.listing import Instruction, Listing

PACKED = "fp8xmxfp4"
REGISTER = re.compile(r"R(\d+)(\.reuse)?")
MULTIPLY_ADD, MMA = "FFMA", "QGMMA"
MMAS_OF_A_K_BLOCK = 8
Change = tuple[Any, str, Any]
MORE_REGISTERS: Change = (config, "DECODE_REGISTERS", RegisterBudget(32, 32, 224, decode=32))


def of_loop(**fields: Any) -> Change:
    """A loop instead of the kernel's."""
    return (math_warps, "multiply_ahead_tile", Loop(**fields).multiply_tile)


LOOPS: dict[str, dict[str, Any]] = {
    "late": {"late": True},
    "even_first": {"order": "even_first"},
    "late_even_first": {"late": True, "order": "even_first"},
    "swap": {"order": "swap"},
    "swap224": {"order": "swap"},
    "swap224_late": {"order": "swap", "late": True},
    "ahead216": {"order": "swap", "ahead": True},
    "ahead224": {"order": "swap", "ahead": True},
    "mid216": {"order": "swap", "ahead": True, "mid": 32},
    "mid224": {"order": "swap", "ahead": True, "mid": 32},
}
"""By the name of a folder; a name with 224 has so many registers."""
WAYS: dict[str, tuple[Change, ...]] = {
    "fp8": (),
    "as_it_is": (),
    "math_first": ((kernel, "DECODING_ORDER", ("math", "decode", "others")),),
    "decode_first": ((kernel, "DECODING_ORDER", ("decode", "others", "math")),),
    **{name: (of_loop(**fields), *([MORE_REGISTERS] if "224" in name else [])) for name, fields in LOOPS.items()},
}
"""What stands where, by the name of a folder."""


@contextmanager
def compiled_as(way: str) -> Iterator[None]:
    """Kernels compiled inside are as it says."""
    with ExitStack() as changes:
        for change in WAYS[way]:
            changes.enter_context(mock.patch.object(*change))
        yield


def k_loop(listing: Listing) -> list[Instruction]:
    """That of whole tiles: the smallest loop with the products of a K block.  Raises LookupError."""
    for loop in Flow(listing).loops:
        body = [listing.instructions[i] for i in sorted(loop.body)]
        if sum(one.operation == MMA for one in body) >= MMAS_OF_A_K_BLOCK:
            return body
    raise LookupError(f"no loop has {MMAS_OF_A_K_BLOCK} {MMA}")


def reads(loop: Sequence[Instruction]) -> int:
    """Clocks in which two banks of registers are read for the multiply-adds of a loop."""
    clocks, held = 0, dict[int, int]()
    for one in loop:
        operands = [REGISTER.fullmatch(text.strip()) for text in one.operands.split(",")[1:]]
        if one.operation == MULTIPLY_ADD:
            banks = [int(found[1]) % 2 for place, found in enumerate(operands) if found and held.get(place) != int(found[1])]
            clocks += max(banks.count(0), banks.count(1))
            held = {place: int(found[1]) for place, found in enumerate(operands) if found and found[2]}
        elif not one.operation.startswith("U"):
            held = {}
    return clocks


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles pairs in other ways, a folder for each.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=shares_of, default="flash:2048,flash:8192,pro:2048", help="PRESET:TOKENS, separated by commas")
    given = parser.parse_args()
    target = Host.typical().target
    for way in WAYS:
        store = ArtifactStore(given.folder / way)
        for point in given.points:
            problem = replace(point.problem, recipe=FP8 if way == "fp8" else PACKED)
            with compiled_as(way):
                artifact = compile_kernel(find_kernel("mega_moe").choose(problem, target, point.tokens))
            store.save(artifact)
            loop = k_loop(artifact.listing)
            adds = sum(one.operation == MULTIPLY_ADD for one in loop)
            clocks = f"{reads(loop)} clocks to read for {adds} multiply-adds"
            print(f"{point.name}, {way}: K loop of {len(loop)} instructions, {clocks}, {artifact.resources.stack_bytes} bytes of stack")


if __name__ == "__main__":
    main()
