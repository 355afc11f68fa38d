"""Faults for the expert-parallel kernels of SM100: of any GEMM of pairs, of the communication warps, and of where the two meet."""

from __future__ import annotations

from ep_faults import (
    ACQUIRES,
    BETWEEN_RANKS,
    COMBINE,
    DISPATCH,
    GLOBAL_FENCE,
    IN_GPU,
    NAMED,
    RANKS,
    SENT,
    SERIAL,
    TASKS,
    nearer,
    relaxed,
)
from kernel_faults import SPIN, gone, swap, taken
from pair_gemm_faults import ANY, LOAD, PAIR_FAULTS, PLAIN_PAIR_FAULTS, TILES
from sm90_faults import NOT_ORDERED, WARP_BARRIER, Sm90Fault, at, before

OF_GEMM = ("work tile not published", "counter of tiles not set back", "counter of tiles set back twice")
"""What `PAIR_FAULTS` have, too."""
ROWS = (
    before("rows not waited for", LOAD, 0, SPIN, taken, ANY),
    at("rows waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    at("rows waited for within the CTA", ACQUIRES, 0, nearer, ("race",)),
    before("scales of rows without proxy fence", LOAD, 0, GLOBAL_FENCE, gone, ("race",)),
)
TILES_DONE = (
    at("CTAs not waited for", SPIN, 0, taken, ANY),
    at("result not stored", SENT, 0, gone, NOT_ORDERED),
)
SENDING = (
    at("row not sent", SENT, 0, gone, NOT_ORDERED),
    before("destination not loaded", SENT, 0, r"ld\.global\.b64[^;]*;", gone, ANY),
    at("rows sent counted without release", IN_GPU, 0, swap(".release", ".relaxed"), ("race",)),
    before("rows sent counted by warps that have not met", IN_GPU, 0, NAMED, gone, ("race",)),
    at("ranks told of rows without release", BETWEEN_RANKS, 0, swap(".release", ".relaxed"), ("race",)),
    at("rows sent summed without proxy fence", GLOBAL_FENCE, 0, gone, ("race",)),
    at("READ of rows sent told without release", BETWEEN_RANKS, -1, swap(".release", ".relaxed"), ("race",)),
)


def besides(faults: tuple[Sm90Fault, ...], others: tuple[Sm90Fault, ...]) -> tuple[Sm90Fault, ...]:
    """Those of `faults` that neither `others` nor the GEMM's have by another pattern."""
    taken_names = {*OF_GEMM, *(one.name for one in others)}
    return tuple(one for one in faults if one.name not in taken_names)


COUNTED_ALONE = before("part counted by lanes that have not met", IN_GPU, 0, WARP_BARRIER, gone, ("race",))
OF_PAIRS = (*PAIR_FAULTS, *besides(TASKS, ()), *RANKS)
PAIR_CASES: tuple[tuple[Sm90Fault, str], ...] = (
    *((fault, "dispatch of pairs") for fault in (*OF_PAIRS, *ROWS, *besides(DISPATCH, ROWS))),
    *((fault, "gather of pairs") for fault in (*OF_PAIRS, *TILES_DONE, *besides(COMBINE, TILES_DONE))),
    *((fault, "scatter of pairs") for fault in SENDING),
    *((fault, "serial of pairs") for fault in (COUNTED_ALONE, *SERIAL)),
)
PAIR_SAMPLE = PAIR_CASES[30::30]
PLAIN = (*PLAIN_PAIR_FAULTS, *TILES, *besides(TASKS, ()), *RANKS)
OF_SCALES = ("scales of rows without proxy fence", "scales not stored", "row counted by lanes that have not met")
PLAIN_ROWS = tuple(one for one in (*ROWS, *besides(DISPATCH, ROWS)) if one.name not in OF_SCALES)
PLAIN_CASES: tuple[tuple[Sm90Fault, str], ...] = (
    *((fault, "dispatch in BF16") for fault in (*PLAIN, *PLAIN_ROWS)),
    *((fault, "gather in BF16") for fault in (*PLAIN, *TILES_DONE, *besides(COMBINE, TILES_DONE))),
    *((fault, "scatter in BF16") for fault in SENDING),
)
"""Of pairs whose operands have no scales."""
