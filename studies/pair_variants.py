"""Pairs of CTAs with E2M1 weights in a few other ways, which nobody has timed (docs/studies.md): same bits, other turns of a scheduler.

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

Of every kernel it says how many multiply-adds of the K loop have all three operands in registers of even numbers, or of odd ones.  Volta's
register file has these two banks and takes a cycle more for three operands of one (Jia et al., arXiv 1804.06826, section 3.4); in the FP8
kernel ptxas leaves none.  Each way is swapped in for one compilation, so that the package has no switch for it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import FP8
from megamoe_dsl.bench.points import shares_of
from megamoe_dsl.blocks.sm90.decoded_ahead import DecodedAhead
from megamoe_dsl.blocks.sm90.decoded_share import release_if
from megamoe_dsl.blocks.sm90.promoted_sums import PromotedSums
from megamoe_dsl.blocks.sm90.tokens_as_m import CHUNKS
from megamoe_dsl.device import wgmma
from megamoe_dsl.device.memory import load_shared_f32
from megamoe_dsl.device.stage import Stage, release_stage
from megamoe_dsl.kernels.mega_moe.sm90 import kernel
from megamoe_dsl.kernels.mega_moe.sm90 import math as math_warps
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.sass.flow import Flow
from megamoe_dsl.sass.listing import Instruction, Listing

PACKED = "fp8xmxfp4"
REGISTER = re.compile(r"\bR(\d+)")
MULTIPLY_ADD, MMA = "FFMA", "QGMMA"
MMAS_OF_A_K_BLOCK = 8


def varied(late: bool, even_first: bool) -> Any:
    """In the place of `decoded_ahead.multiply_ahead_tile`."""

    def multiply_tile(stage: Stage, me: DecodedAhead, k_blocks: Int32) -> Any:
        return multiply_varied_tile(stage, me, k_blocks, late, even_first)

    return multiply_tile


@cute.jit
def multiply_varied_tile(
    stage: Stage, me: DecodedAhead, k_blocks: Int32, late: cutlass.Constexpr[bool], even_first: cutlass.Constexpr[bool]
):
    """As `multiply_ahead_tile`."""
    acc, tokens = me.zero(), me.fragment(stage)
    for k in cutlass.range(k_blocks - 1, unroll=1):
        acc, tokens, stage = multiply_stage(stage, me, acc, tokens, k, True, late, even_first)
    acc, tokens, stage = multiply_stage(stage, me, acc, tokens, k_blocks - 1, False, late, even_first)
    return me.scale_rows(acc.parts, stage.previous()), stage


@cute.jit
def multiply_stage(
    stage: Stage,
    me: DecodedAhead,
    acc: PromotedSums,
    tokens: Any,
    k: Int32,
    more: cutlass.Constexpr[bool],
    late: cutlass.Constexpr[bool],
    even_first: cutlass.Constexpr[bool],
):
    """As `decoded_ahead.multiply_stage`.  With `late` it gives back the stage before this one, of K block 0 none, and loads the weights'
    scale after that, so that no load is under way then."""
    weights, following = stage.shared("weights"), stage.next()
    token_scale = stage.token_scales + me.token * 4
    if cutlass.const_expr(not late):
        ((factor,), *_) = me.block_scales(stage, None, 0)
    sums, partial = [], acc.partial
    for c in cutlass.range_constexpr(CHUNKS):
        ends = c == CHUNKS - 1 and more
        partial = wgmma.issue_registers(tokens, wgmma.descriptor((weights + c * me.chunk_bytes) >> 4), partial)
        if cutlass.const_expr(c == 0):
            if cutlass.const_expr(late):
                release_if(stage.previous(), me.lane, k > 0)
                ((factor,), *_) = me.block_scales(stage, None, 0)
            per_token = [load_shared_f32(token_scale + 32 * h) * factor for h in range(2)]
        if cutlass.const_expr(ends):
            following.wait_full()
        partial = wgmma.wait(partial, 0, tokens)
        if cutlass.const_expr(ends):
            if cutlass.const_expr(not late):
                release_stage(stage, me.lane)
            tokens = me.fragment(following)
        sums.append(promoted(acc.parts[c], partial, per_token, even_first))
    return PromotedSums(tuple(sums), partial), tokens, following


def promoted(old: Sequence[Any], partial: Sequence[Any], factors: Sequence[Any], even_first: bool) -> tuple[Any, ...]:
    """A chunk's sums with its products."""
    order = sorted(range(len(old)), key=lambda i: i % 2) if even_first else range(len(old))
    sums = {i: old[i] + partial[i] * factors[i // 2 % 2] for i in order}
    return tuple(sums[i] for i in range(len(old)))


WAYS: dict[str, tuple[Any, str, Any] | None] = {
    "fp8": None,
    "as_it_is": None,
    "math_first": (kernel, "DECODING_ORDER", ("math", "decode", "others")),
    "decode_first": (kernel, "DECODING_ORDER", ("decode", "others", "math")),
    "late": (math_warps, "multiply_ahead_tile", varied(late=True, even_first=False)),
    "even_first": (math_warps, "multiply_ahead_tile", varied(late=False, even_first=True)),
    "late_even_first": (math_warps, "multiply_ahead_tile", varied(late=True, even_first=True)),
}
"""What stands where, by the name of a folder."""


@contextmanager
def compiled_as(way: str) -> Iterator[None]:
    """Kernels compiled inside are as it says."""
    change = WAYS[way]
    if change is None:
        yield
    else:
        with mock.patch.object(*change):
            yield


def k_loop(listing: Listing) -> list[Instruction]:
    """That of whole tiles: the smallest loop with the products of a K block.  Raises LookupError."""
    for loop in Flow(listing).loops:
        body = [listing.instructions[i] for i in sorted(loop.body)]
        if sum(one.operation == MMA for one in body) >= MMAS_OF_A_K_BLOCK:
            return body
    raise LookupError(f"no loop has {MMAS_OF_A_K_BLOCK} {MMA}")


def in_one_bank(one: Instruction) -> bool:
    """Whether all three operands of a multiply-add are in registers of even numbers, or all in those of odd ones."""
    sources = REGISTER.findall(one.operands)[1:]
    return one.operation == MULTIPLY_ADD and len(sources) == 3 and len({int(number) % 2 for number in sources}) == 1


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
            banks = f"{sum(map(in_one_bank, loop))} of {adds} multiply-adds in one bank"
            print(f"{point.name}, {way}: K loop of {len(loop)} instructions, {banks}, {artifact.resources.stack_bytes} bytes of stack")


if __name__ == "__main__":
    main()
