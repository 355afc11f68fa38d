"""DeepGEMM's SM100 kernel in the model.  Its times are published; ours has not been measured.

Its order is the article's: Linear1 of a wave of experts, then its Linear2.  Tiers and waves are those of its heuristics (commit 54e2261,
`csrc/jit_kernels/heuristics/mega_moe.hpp`), instructions those of its compiled code (docs/lab/compiled.md).  Packed tokens:
pull request 44 of sgl-project's fork, in tiles of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from megamoe_dsl.hardware.operand_tile import packed_values
from megamoe_dsl.layouts.arith import ceil_div
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import FC1, FC2, Block, HostTable

from .calibration import Calibration
from .launch import KBlocks, RankLoad, Tiles
from .prediction import Subject
from .sm100 import Instructions, Shape

IMBALANCE = 2


@dataclass(frozen=True)
class Heuristic:
    """For up to `most` expected tokens per expert."""

    most: float
    block_m: int
    store_block_m: int
    epilogue_warpgroups: int
    num_stages: int
    instructions: Instructions


HEURISTICS = (
    Heuristic(8.5, 16, 8, 2, 10, Instructions(220, 67, 97, 58.5, 29.5)),
    Heuristic(16.5, 32, 16, 2, 10, Instructions(175, 50, 97, 87, 53)),
    Heuristic(32.5, 64, 32, 1, 9, Instructions(139, 37, 94, 87, 53)),
    Heuristic(64.5, 96, 16, 2, 8, Instructions(155, 41, 95, 87, 53)),
    Heuristic(96.5, 128, 32, 2, 7, Instructions(146, 38, 100, 87, 53)),
    Heuristic(float("inf"), 192, 32, 2, 6, Instructions(146, 37, 99, 94, 53)),
)
PACKED = {
    128: Heuristic(16.5, 32, 32, 2, 20, Instructions(172, 36, 97, 73, 53)),
    256: Heuristic(16.5, 32, 32, 2, 10, Instructions(172, 36, 97, 93, 53)),
}
"""With packed tokens, by BLOCK_K (docs/reference/w4a4.md)."""


def subject_of(problem: Problem, load: RankLoad, num_sms: int) -> Subject:
    """A launch of that kernel."""
    found = next(one for one in HEURISTICS if problem.expected_tokens_per_expert(load.tokens) <= one.most)
    return launch_of(shape_of(problem, found, num_sms), load)


def packed_subject(problem: Problem, load: RankLoad, num_sms: int, block_k: int) -> Subject:
    """The same of packed tokens, with stages of `block_k` channels."""
    return launch_of(replace(shape_of(problem, PACKED[block_k], num_sms), k_block=packed_values(block_k)), load)


def shape_of(problem: Problem, found: Heuristic, num_sms: int) -> Shape:
    """The kernel as a heuristic has it."""
    return Shape(
        problem,
        num_sms,
        found.block_m,
        found.store_block_m,
        found.epilogue_warpgroups,
        found.num_stages,
        found.instructions,
        shares_tile=True,
        handed_out=False,
    )


def launch_of(shape: Shape, load: RankLoad) -> Subject:
    """Its tiles in waves."""
    wave = experts_per_wave(shape.problem, load.tokens, shape.block_m, shape.num_sms)
    k_blocks = KBlocks.of(shape.problem, shape.k_block.channels)
    return Subject(shape, Tiles.of(in_waves(k_blocks, load.counts, shape.block_m, wave)), load)


def beside_ours(calibration: Calibration, longer: float) -> Calibration:
    """With `longer` microseconds more at both ends together: two more barriers between ranks, and a longer start."""
    return replace(calibration, start=calibration.start + longer / 2, tail=calibration.tail + longer / 2)


def in_waves(k_blocks: KBlocks, counts: tuple[int, ...], block_m: int, wave: int) -> Iterator[Block]:
    """Linear1 of `wave` experts, then their Linear2, and so on; weight blocks change fastest."""
    blocks = HostTable.of(counts, block_m)
    for start in range(0, len(counts), wave):
        for phase, n_blocks in ((FC1, k_blocks.fc1_n), (FC2, k_blocks.fc2_n)):
            for expert in range(start, min(start + wave, len(counts))):
                first = blocks.first[expert]
                for pool_block in range(first, blocks.first[expert + 1]):
                    for n_block in range(n_blocks):
                        yield Block(phase, expert, pool_block - first, n_block, pool_block, blocks.valid[pool_block])


def experts_per_wave(problem: Problem, tokens: int, block_m: int, num_sms: int) -> int:
    """As many experts as give every SM two Linear1 tiles, or some more where the last wave then is fuller."""
    local = problem.experts_per_rank
    expected = tokens * problem.topk / local
    tiles = max(1, ceil_div(ceil(expected), block_m)) * (2 * problem.intermediate // 128)
    least = local if expected < 1 else ceil_div(IMBALANCE * num_sms, tiles)
    if least >= local:
        return local
    if tiles >= num_sms:
        return least
    return max(range(least, min(local, 2 * least) + 1), key=lambda wave: (local % wave or wave) / wave)
