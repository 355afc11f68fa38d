"""Faults for the expert-parallel kernels: what their roles wait for and signal, each taken out or weakened on its own (sm90_faults.py has
the means, gemm_faults.py what any ring and any GEMM can have)."""

from __future__ import annotations

import re

from gemm_faults import ALONE, ANY, BOXES, COMMIT, COUNT, READ_WAIT, RING, TILES
from kernel_faults import SPIN, gone, last_number_plus, smaller_scope, swap, taken, twice
from sm90_faults import (
    CLEAR,
    EXPECT,
    FENCE_SHARED,
    LOAD,
    NOT_ORDERED,
    PUBLISH,
    ROW_STORE,
    STUCK,
    WAIT,
    WARP_BARRIER,
    WGMMA,
    Sm90Fault,
    after,
    at,
    before,
    fewer_bytes,
    never,
)

COMMUNICATION = r"setmaxnreg[^;]*;"  # the last one: where the communication warps begin
TAKEN = r"atom\.[^;]*\.add\.[^;]*;"
FETCH = r"cp\.async\.bulk\.shared::cluster\.global[^;]*;"
GLOBAL_FENCE = r"fence\.proxy\.async\.global;"
WRITTEN = r"cp\.async\.bulk\.wait_group 0;"
IN_GPU = r"red\.release\.gpu[^;]*;"
BETWEEN_RANKS = r"red\.release\.sys[^;]*;"
SENT = r"st\.global\.v4[^;]*;"
NAMED = r"barrier\.cta\.sync\.aligned [^;]*;"
ACQUIRES = r"ld\.acquire\.\w+\.global\.b32 (%r\d+), \[(%rd\d+)\];.*?ld\.acquire\.\w+\.global\.b32 \1, \[\2\];"
"""The first read of a spin and those of its loop."""


def relaxed(match: re.Match[str]) -> str:
    """A spin whose reads order nothing."""
    return match[0].replace("ld.acquire", "ld.relaxed")


def nearer(match: re.Match[str]) -> str:
    """A spin whose reads are of a smaller scope."""
    return re.sub(r"ld\.acquire\.\w+", lambda one: smaller_scope(one[0] + ".")[:-1], match[0])


TASKS = (
    at("first task not taken", TAKEN, -2, gone, ANY),
    at("later task taken twice", TAKEN, -1, twice, ANY),
    at("counter of tiles not set back", COUNT, 0, gone, ANY),
    at("counter of tiles set back twice", COUNT, 0, twice, ANY),
    at("counter of tasks not set back", r"st\.global\.b32[^;]*, 0;", -1, gone, ANY),
)
RANKS = (
    at("this rank's arrival dropped, first", BETWEEN_RANKS, 0, gone, STUCK),
    at("this rank's arrival dropped, last", BETWEEN_RANKS, -1, gone, STUCK),
    at("this rank's arrival twice, last", BETWEEN_RANKS, -1, twice, ANY),
    at("a CTA's arrival dropped, last", IN_GPU, -1, gone, STUCK),
    at("launch not counted", r"st\.global\.b32[^;]*;", -1, gone, ANY),
)
DISPATCH = (
    at("work tile not published", PUBLISH, 1, gone, ANY),
    at("counters of the next launch not cleared", CLEAR, 0, gone, ANY),
    at("row not fetched", FETCH, 0, gone, STUCK),
    before("bytes of a row too few", FETCH, 0, EXPECT, last_number_plus(-16), ANY),
    before("row stored before it is there", ROW_STORE, 0, WAIT, never, NOT_ORDERED),
    at("row not stored", ROW_STORE, 0, gone, NOT_ORDERED),
    after("row not committed", ROW_STORE, 0, COMMIT, gone, NOT_ORDERED),
    before("scales not stored", ROW_STORE, 0, r"st\.global\.b32[^;]*;", gone, NOT_ORDERED),
    before("row counted by lanes that have not met", ROW_STORE, 0, WARP_BARRIER, gone, ("race",)),
    after("row counted before it is written", ROW_STORE, 0, WRITTEN, gone, NOT_ORDERED),
    after("last row not counted", ROW_STORE, 0, IN_GPU, gone, STUCK),
    at("row not counted", IN_GPU, 0, gone, STUCK),
    at("row counted before it is written, next one on its way", WRITTEN, 0, gone, NOT_ORDERED),
    before("row fetched into slots that are still read", FETCH, 0, READ_WAIT, gone, NOT_ORDERED),
    at("destination not stored", r"st\.global\.b64[^;]*;", 0, gone, ("wrong result",)),
    after("row counted twice", ROW_STORE, 0, IN_GPU, twice, ANY),
    after("row counted without release", ROW_STORE, 0, IN_GPU, swap(".release", ".relaxed"), ("race",)),
    after("row counted within the CTA", ROW_STORE, 0, IN_GPU, lambda match: smaller_scope(match[0]), ("race",)),
    before("rows not waited for", LOAD, 0, SPIN, taken, ANY),
    at("rows waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    at("rows waited for within the CTA", ACQUIRES, 0, nearer, ("race",)),
    before("scales of rows without proxy fence", LOAD, 0, GLOBAL_FENCE, gone, ("race",)),
)
STORED = r"st\.release\.gpu[^;]*;"
ROW_LIES = r"st\.global\.b64[^;]*;"
"""Where a row's result goes is stored just before where its token lies."""
TAIL = (
    at("token said to be there without release", STORED, 0, swap(".release", ".relaxed"), ("race",)),
    at("last token said to be there without release", STORED, -1, swap(".release", ".relaxed"), ("race",)),
    at("last token not said to be there", STORED, -1, gone, STUCK),
    before("token said to be there before it is written", STORED, 0, WRITTEN, gone, NOT_ORDERED),
    before("token said to be there by lanes that have not met", STORED, -1, WARP_BARRIER, gone, ("race",)),
    after("place of a token not stored", ROW_LIES, 0, r"st\.global\.b32[^;]*;", gone, ANY),
    before("tokens not waited for by who copies them", ROW_STORE, -1, SPIN, taken, ANY),
    at("tokens waited for without acquire", ACQUIRES, -1, relaxed, ("race",)),
    after("tokens copied by lanes that have not met", ACQUIRES, -1, WARP_BARRIER, gone, ("race",)),
    before("row copied into slots that are still read", FETCH, -1, READ_WAIT, gone, NOT_ORDERED),
    at("row not copied", ROW_STORE, -1, gone, NOT_ORDERED),
    at("rows counted before they are copied", WRITTEN, -1, gone, NOT_ORDERED),
    at("rows of a group not counted", IN_GPU, -1, gone, STUCK),
    at("rows of a group counted without release", IN_GPU, -1, swap(".release", ".relaxed"), ("race",)),
)
SECOND_TURN = 4
"""The first chunk of a row that finds a chunk of the same row in its slot, and whose it is the first store."""
CHUNKS = (
    at("chunk of a second turn not fetched", FETCH, SECOND_TURN, gone, STUCK),
    at("chunk of a second turn not stored", ROW_STORE, SECOND_TURN, gone, NOT_ORDERED),
    before("chunk of a second turn stored before it is there", ROW_STORE, SECOND_TURN, WAIT, never, NOT_ORDERED),
    before("chunk fetched into a slot that is still read", FETCH, SECOND_TURN, READ_WAIT, gone, NOT_ORDERED),
    before("chunk fetched before all lanes have stored the one before", FETCH, SECOND_TURN, WARP_BARRIER, gone, NOT_ORDERED),
    before("bytes of a later chunk too few", FETCH, SECOND_TURN, EXPECT, last_number_plus(-16), ANY),
    after("last row of many chunks counted before it is written", ROW_STORE, -1, WRITTEN, gone, NOT_ORDERED),
)
COMBINE = (
    at("work tile not published", PUBLISH, 0, gone, ANY),
    at("tiles of a CTA not counted", IN_GPU, 0, gone, STUCK),
    at("tiles counted without release", IN_GPU, 0, swap(".release", ".relaxed"), ("race",)),
    at("tiles counted within the CTA", IN_GPU, 0, lambda match: smaller_scope(match[0]), ("race",)),
    before("tiles counted by warps that have not met", IN_GPU, 0, NAMED, gone, ("race",)),
    at("ranks told without release", BETWEEN_RANKS, 0, swap(".release", ".relaxed"), ("race",)),
    at("ranks told within the GPU", BETWEEN_RANKS, 0, lambda match: smaller_scope(match[0]), ("race",)),
    after("CTAs not waited for", COMMUNICATION, -1, SPIN, taken, ANY),
    at("CTAs waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    before("ranks not waited for", GLOBAL_FENCE, 0, SPIN, taken, ANY),
    at("ranks waited for without acquire", ACQUIRES, 1, relaxed, ("race",)),
    at("ranks waited for within the GPU", ACQUIRES, 1, nearer, ("race",)),
    before("ranks waited for by one thread alone", GLOBAL_FENCE, 0, NAMED, gone, ("race",)),
    at("results fetched without proxy fence", GLOBAL_FENCE, 0, gone, ("race",)),
    at("results of a piece not fetched, first", FETCH, 0, gone, STUCK),
    at("results of a piece not fetched, later", FETCH, -1, gone, STUCK),
    before("bytes of results too few", FETCH, -1, EXPECT, fewer_bytes, ANY),
    before("results summed before they are there", ROW_STORE, 0, WAIT, never, NOT_ORDERED),
    before("sum written over one that leaves", ROW_STORE, 0, READ_WAIT, gone, ("race",)),
    before("sum without proxy fence", ROW_STORE, 0, FENCE_SHARED, gone, ("race",)),
    before("sum leaves before all lanes have written", ROW_STORE, 0, WARP_BARRIER, gone, ("race",)),
    at("sum not stored", ROW_STORE, 0, gone, NOT_ORDERED),
    after("sum not committed", ROW_STORE, 0, COMMIT, gone, NOT_ORDERED),
    at("READ counted without release", IN_GPU, -1, swap(".release", ".relaxed"), ("race",)),
    at("READ told within the GPU", BETWEEN_RANKS, -1, lambda match: smaller_scope(match[0]), ("race",)),
    at("READ of ranks waited for without acquire", ACQUIRES, -1, relaxed, ("race",)),
)
SCATTER = (
    at("row not sent", SENT, 0, gone, NOT_ORDERED),
    before("destination not loaded", SENT, 0, r"ld\.global\.b64[^;]*;", gone, ANY),
    before("box read before all lanes have written", SENT, 0, WARP_BARRIER, gone, ("race",)),
    at("rows sent counted without release", IN_GPU, 0, swap(".release", ".relaxed"), ("race",)),
    before("rows sent counted by warps that have not met", IN_GPU, 0, NAMED, gone, ("race",)),
    at("ranks told of rows without release", BETWEEN_RANKS, 0, swap(".release", ".relaxed"), ("race",)),
    at("rows sent summed without proxy fence", GLOBAL_FENCE, 0, gone, ("race",)),
    at("READ of rows sent told without release", BETWEEN_RANKS, -1, swap(".release", ".relaxed"), ("race",)),
)
KEPT = r"ld\.global\.v4[^;]*;"
MEETINGS = rf"{WARP_BARRIER}(?:(?!{WARP_BARRIER}).)*?{WRITTEN}(?:(?!{WARP_BARRIER}).)*?{WARP_BARRIER}"
"""Where lanes that have stored rows meet, to use their box again and to count: either orders what the other does."""


def never_met(match: re.Match[str]) -> str:
    """Lanes that meet at neither."""
    return re.sub(WARP_BARRIER, "", match[0])


KEPT_BY_TMA = (
    before("part counted before its results are written", IN_GPU, 0, WRITTEN, gone, NOT_ORDERED),
    before("part counted by lanes that have not met", IN_GPU, 0, MEETINGS, never_met, ("race",)),
)
SERIAL = (
    at("part not counted", IN_GPU, 0, gone, STUCK),
    at("part counted without release", IN_GPU, 0, swap(".release", ".relaxed"), ("race",)),
    at("part counted within the CTA", IN_GPU, 0, lambda match: smaller_scope(match[0]), ("race",)),
    at("parts of the next launch not cleared", CLEAR, 0, gone, ANY),
    before("parts not waited for", KEPT, 0, SPIN, taken, ANY),
    at("parts waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    at("parts waited for within the CTA", ACQUIRES, 0, nearer, ("race",)),
    at("results not sent", SENT, -1, gone, NOT_ORDERED),
    before("results said to be sent by warps that have not met", IN_GPU, 1, NAMED, gone, ("race",)),
    at("results said to be sent without release", IN_GPU, 1, swap(".release", ".relaxed"), ("race",)),
)
BOXES_OF_TILES = (*BOXES, before("tiles counted before their boxes are written", IN_GPU, 0, WRITTEN, gone, NOT_ORDERED))
OF_ANY = (*RING, *ALONE, *TILES[:2], *WGMMA[1:], *TASKS, *RANKS)  # one wait is the first group's and the last one's
CASES: tuple[tuple[Sm90Fault, str], ...] = (
    *((fault, "dispatch") for fault in (*OF_ANY, *DISPATCH)),
    *((fault, "tail") for fault in TAIL),
    *((fault, "long rows") for fault in CHUNKS),
    *((fault, "combine") for fault in (*OF_ANY, *COMBINE)),
    *((fault, "boxes") for fault in BOXES_OF_TILES),
    *((fault, "scatter") for fault in SCATTER),
    *((fault, "serial") for fault in (*KEPT_BY_TMA, *SERIAL)),
)
SAMPLE = CASES[::12]
