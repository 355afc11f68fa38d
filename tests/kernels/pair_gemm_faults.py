"""Faults for the GEMM kernel of CTA pairs (gemm_faults.py has what any GEMM can have, sm90_faults.py the means)."""

from __future__ import annotations

from kernel_faults import CLUSTER_BARRIER, gone, last_number_plus, swap, twice
from sm90_faults import (
    EPILOGUE_GROUP,
    EXPECT,
    NOT_ORDERED,
    PUBLISH,
    REMOTE_ARRIVE,
    SEND_TICKET,
    STMATRIX,
    STUCK,
    TICKET,
    WAIT,
    Sm90Fault,
    at,
    before,
    fewer_bytes,
    never,
)

LOAD = r"cp\.async\.bulk\.tensor\.2d\.cta_group::2[^;]*;"
SCALES = r"tcgen05\.cp\.[^;]*;"
MMA = r"tcgen05\.mma\.[^;]*;"
COMMIT = r"tcgen05\.commit[^;]*;"
BOTH = r"mov\.b16 m, 3;"
AFTER = r"tcgen05\.fence::after_thread_sync;"
COUNT = r"red\.relaxed\.gpu\.global\.add\.u32[^;]*;"
ANY = (*NOT_ORDERED, *STUCK)
to_one = swap("3", "1")

OPERANDS: tuple[Sm90Fault, ...] = (
    before("empty not waited for by the token loader", LOAD, 0, WAIT, never, ANY),
    before("empty not waited for by the weight loader", LOAD, -1, WAIT, never, ANY),
    before("token bytes too few", LOAD, 0, EXPECT, fewer_bytes, ANY),
    before("weight bytes too many", LOAD, -1, EXPECT, last_number_plus(16), STUCK),
    at("full by three loaders", r"mbarrier\.init[^;]*, 4;", 0, last_number_plus(-1), ANY),
    at("an MMA dropped", MMA, 1, gone, NOT_ORDERED),
    at("stage not given back", COMMIT, 0, gone, STUCK),
    at("stage given back to one CTA", BOTH, 0, to_one, STUCK),
    at("accumulator announced to one CTA", BOTH, -1, to_one, STUCK),
    at("accumulator not announced", COMMIT, -1, gone, STUCK),
    before("accumulator multiplied into while it is read", AFTER, 0, WAIT, never, NOT_ORDERED),
    before("accumulator read before it is full", AFTER, -1, WAIT, never, ANY),
)
SCALED = (
    before("full not waited for", SCALES, 0, WAIT, never, NOT_ORDERED),
    at("scales of weights not copied", SCALES, 0, gone, NOT_ORDERED),
    at("scales of rows not copied", SCALES, -1, gone, NOT_ORDERED),
)
PLAIN_PAIR_FAULTS: tuple[Sm90Fault, ...] = (
    *OPERANDS,
    before("full not waited for", MMA, 0, WAIT, never, NOT_ORDERED),
    at("the last MMA dropped", MMA, -1, gone, NOT_ORDERED),
)
"""Of operands without scales."""
TILES: tuple[Sm90Fault, ...] = (
    at("loads of the accumulator not waited for", r"tcgen05\.wait::ld\.sync\.aligned;", 0, gone, NOT_ORDERED),
    at("accumulator given back without a fence", r"tcgen05\.fence::before_thread_sync;", -1, gone, ("race",)),
    at("accumulator not given back", REMOTE_ARRIVE, -1, gone, STUCK),
    at("accumulator given back by a warp less", r"mbarrier\.init[^;]*, 16;", 0, last_number_plus(-1), ANY),
    at("pass staged while it is read", EPILOGUE_GROUP, 0, gone, NOT_ORDERED),
    at("pass read before it is staged", EPILOGUE_GROUP, 1, gone, NOT_ORDERED),
    at("eight rows not staged", STMATRIX, 0, gone, NOT_ORDERED),
    before("work_tile_full not waited for, first tile", TICKET, 0, WAIT, never, NOT_ORDERED),
    at("work tile not published", PUBLISH, 0, gone, ANY),
    at("work tile not sent", SEND_TICKET, 0, gone, STUCK),
    at("counter not set back", COUNT, 0, gone, ANY),
    at("counter set back twice", COUNT, 0, twice, ANY),
    at("barriers used before they are there", CLUSTER_BARRIER, 0, gone, ("simulator error", "race")),
    at("tensor memory not allocated", r"tcgen05\.alloc[^;]*;", 0, gone, ("simulator error",)),
    at("tensor memory not freed", r"tcgen05\.dealloc[^;]*;", 0, gone, ("simulator error",)),
)
PAIR_FAULTS: tuple[Sm90Fault, ...] = (*OPERANDS, *SCALED, *TILES)
