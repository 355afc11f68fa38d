"""Whole tiles of 128 tokens by 256 rows of E2M1 weights that other warps decode into a stage (decode.py), multiplied in pieces of 64 weight
rows: while one piece is in the tensor core, the sums of the piece before it are promoted.

waits     full, per stage
signals   empty, per warp and stage

Tokens are the wgmma's A and come from registers, so that pieces cost no more accesses to shared memory than one wgmma of all rows; two
pieces' partial sums take the registers of one product of 128 rows.  A stage is given back before the sums of its last piece are promoted,
and meanwhile the next stage's tokens arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...device import wgmma
from ...device.matrix import load_four
from ...device.memory import load_shared_f32
from ...device.stage import Stage, release_stage
from ...device.warp import shuffle
from ...hardware.packed_tile import TILE_ROWS
from .decoded_share import DecodedShare
from .math_thread import MathThread
from .promoted_sums import PromotedSums
from .tokens_as_m import CHUNK_ROWS, CHUNKS, ROW_BYTES

PIECE_ROWS = 64
PIECES = TILE_ROWS // PIECE_ROWS
IN_FLIGHT = 2
PIECES_OF_A_CHUNK = PIECES // CHUNKS


@dataclass(frozen=True)
class DecodedPieces(DecodedShare):
    """The share of a thread: 64 tokens of its warpgroup, all weight rows.

    place  of what it loads of a stage's tokens
    """

    place: Any

    @staticmethod
    def of(me: MathThread) -> DecodedPieces:  # type: ignore[override]
        """Of a whole tile."""
        share = DecodedPieces(me.group, me.warp, me.lane, False, CHUNKS, CHUNK_ROWS, TILE_ROWS, None)
        return replace(share, place=share.fragment_place())

    def fragment_place(self) -> Any:
        """Where the first 32 of K of its tokens are in a stage, as `ldmatrix` wants addresses: lane 8 m + r gives row r of matrix m, the
        first of which are 16 bytes of rows 0 to 7 and of rows 8 to 15, then the 16 bytes beside them."""
        matrix, row = self.lane >> 3, self.lane & 7
        token = self.warp_token + ((matrix & 1) * 8 + row)
        # From here on it is nothing that ptxas could compute again in each K block, while the tensor core waits.
        return shuffle(token * ROW_BYTES + ((matrix >> 1 ^ row) << 4), self.lane)

    def fragment(self, stage: Stage) -> tuple[Any, ...]:
        """A full stage's tokens as the wgmma's A: rows `row` and `row + 8` of the warp's 16, and the 16 bytes beside them, step by step."""
        first = stage.shared("tokens") + self.place
        return tuple(word for step in range(wgmma.STEPS) for word in load_four(first ^ (32 * step)))

    def piece(self, stage: Stage, number: int) -> Any:
        """Descriptor of a piece of the weight rows."""
        return wgmma.descriptor((stage.shared("weights") + number * (PIECE_ROWS * ROW_BYTES)) >> 4)


@dataclass(frozen=True)
class Pieces:
    """What goes from one K block to the next: a thread's sums piece by piece, registers of partial sums of the pieces in flight, and the
    next stage's tokens."""

    parts: tuple[tuple[Any, ...], ...]
    partials: tuple[tuple[Any, ...], ...]
    tokens: tuple[Any, ...]

    @staticmethod
    def before(me: DecodedPieces, stage: Stage) -> Pieces:
        """The first K block, whose stage is full."""
        parts = PromotedSums.zero(PIECES, PIECE_ROWS // 2).parts
        return Pieces(parts, parts[:IN_FLIGHT], me.fragment(stage))

    @property
    def chunks(self) -> tuple[tuple[Any, ...], ...]:
        """The sums, chunk by chunk of 128 weight rows."""
        firsts = range(0, PIECES, PIECES_OF_A_CHUNK)
        return tuple(tuple(value for part in self.parts[first:][:PIECES_OF_A_CHUNK] for value in part) for first in firsts)


@cute.jit
def multiply_pieces(stage: Stage, me: DecodedPieces, k_blocks: Int32):
    """`k_blocks` > 0 stages, the first of them full.  Returns the sums, chunk by chunk, and the stage after the last."""
    acc = Pieces.before(me, stage)
    for _ in cutlass.range(k_blocks - 1, unroll=1):
        acc, stage = multiply_stage(stage, me, acc, True)
    acc, stage = multiply_stage(stage, me, acc, False)
    return me.scale_rows(acc.chunks, stage.previous()), stage


@cute.jit
def multiply_stage(stage: Stage, me: DecodedPieces, acc: Pieces, more: cutlass.Constexpr[bool]):
    """One K block.  Returns the sums, and the next stage, which is full if there are `more`; only then is this one given back."""
    following, tokens = stage.next(), acc.tokens
    token_scale = stage.token_scales + me.token * 4
    ((factor,), *_) = me.block_scales(stage, None, 0)
    started = [wgmma.issue_registers(tokens, me.piece(stage, i), acc.partials[i]) for i in range(IN_FLIGHT)]
    per_token = [load_shared_f32(token_scale + 32 * h) * factor for h in range(2)]
    sums, free = [], []
    for i in cutlass.range_constexpr(PIECES):
        ends = i == PIECES - 1 and more
        if cutlass.const_expr(ends):
            following.wait_full()
        partial = wgmma.wait(started[i], len(started) - 1 - i, tokens)
        if cutlass.const_expr(ends):
            release_stage(stage, me.lane)
            tokens = me.fragment(following)
        old = acc.parts[i]
        sums.append(tuple(old[j] + partial[j] * per_token[j // 2 % 2] for j in range(len(old))))
        if cutlass.const_expr(i + IN_FLIGHT < PIECES):
            started.append(wgmma.issue_registers(tokens, me.piece(stage, i + IN_FLIGHT), partial))
        else:
            free.append(partial)
    return Pieces(tuple(sums), tuple(free), tokens), following
