"""Faults for the GEMM of CTA pairs that gathers its rows (pair_gemm_faults.py has what any GEMM of pairs can have)."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernel_faults import gone, last_number_plus, swap
from pair_gemm_faults import AFTER, ANY, LOAD, MMA, SCALES
from sm90_faults import (
    EPILOGUE_GROUP,
    EXPECT,
    FENCE_SHARED,
    NOT_ORDERED,
    RELEASE,
    SEND_TICKET,
    STUCK,
    WAIT,
    Sm90Fault,
    after,
    at,
    before,
    never,
)

GATHER = r"cp\.async\.bulk\.tensor\.2d\.cta_group::2[^;]*gather4[^;]*;"
TO_CTAS = r"cvt\.u16\.u32 m, (%r\d+);"
SCATTER = r"cp\.async\.bulk\.tensor\.2d\.global[^;]*scatter4[^;]*;"
COPY = r"cp\.async\.ca\.[^;]*;"
COPIED = r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64 \[(%r\d+)\];"
ANNOUNCE = r"mbarrier\.arrive\.release\.cluster[^;]*;"
READ_WAIT = r"cp\.async\.bulk\.wait_group\.read \d;"
COMMIT = r"cp\.async\.bulk\.commit_group;"


def plain_arrival(match: object) -> str:
    return f"mbarrier.arrive.shared::cta.b64 _, [{match[1]}];"  # type: ignore[index]


ROWS: tuple[Sm90Fault, ...] = (
    before("empty not waited for by the warps that gather", GATHER, 0, WAIT, never, ANY),
    at("four rows not gathered", GATHER, 0, gone, STUCK),
    before("rows not expected", GATHER, 0, EXPECT, gone, STUCK),
    at("rows gathered twice", GATHER, 0, lambda match: f"{match[0]}\n\t{match[0]}", ANY),
    at("rows of a list not copied", COPY, 0, gone, NOT_ORDERED),
    at("list announced before it is copied", COPIED, 0, plain_arrival, NOT_ORDERED),
    at("the list's barrier counts one more for each lane", COPIED, 0, swap(".noinc", ""), STUCK),
    before("list_full not waited for", RELEASE, -1, WAIT, never, NOT_ORDERED),
    before("list_empty not waited for", COPY, 0, WAIT, never, NOT_ORDERED),
    at("list not given back", RELEASE, -1, gone, STUCK),
    at("list given back by a thread less", r"mbarrier\.init[^;]*, 128;", -1, last_number_plus(-1), ANY),
)
RESULTS: tuple[Sm90Fault, ...] = (
    at("an MMA of the second consumer dropped", MMA, 1, gone, NOT_ORDERED),
    at("results without proxy fence", FENCE_SHARED, -1, gone, ("race",)),
    at("results scattered while they are staged", EPILOGUE_GROUP, 1, gone, NOT_ORDERED),
    at("four rows not scattered", SCATTER, 0, gone, NOT_ORDERED),
    after("scattered rows not committed", SCATTER, 0, COMMIT, gone, NOT_ORDERED),
    at("pass staged while it is scattered", READ_WAIT, 0, gone, NOT_ORDERED),
)
COPIED_SCALES: tuple[Sm90Fault, ...] = (
    at("scales not copied", COPY, -1, gone, NOT_ORDERED),
    at("scales announced before they are copied", COPIED, -1, plain_arrival, NOT_ORDERED),
    before("scales read before they are copied", SCALES, 0, WAIT, never, NOT_ORDERED),
    at("copied scales without proxy fence", FENCE_SHARED, 0, gone, ("race",)),
    at("scales not announced", ANNOUNCE, 0, gone, STUCK),
    before("scales announced before they are there", ANNOUNCE, 0, WAIT, never, ANY),
)
PAIR_GATHER_FAULTS: tuple[Sm90Fault, ...] = (
    *ROWS,
    *RESULTS,
    *COPIED_SCALES,
    at("scales of the second consumer's weights not copied", SCALES, 1, gone, NOT_ORDERED),
)
PLAIN_GATHER_FAULTS: tuple[Sm90Fault, ...] = (
    *ROWS,
    *RESULTS,
    before("full not waited for", MMA, 0, WAIT, never, NOT_ORDERED),
    at("full by a loader less", r"mbarrier\.init[^;]*, 4;", 0, last_number_plus(-1), ANY),
)
"""Of rows without scales."""


def to_pair(which: int) -> Callable[[re.Match[str]], str]:
    return lambda match: f"mov.b16 m, {3 << 2 * which};"


TWO_PAIRS_FAULTS: tuple[Sm90Fault, ...] = (
    before("empty not waited for by the warps that gather", GATHER, 0, WAIT, never, ANY),
    before("empty not waited for by the weight loader", LOAD, 0, WAIT, never, ANY),
    at("stage given back to one's own pair only", r"mov\.b16 m, 15;", 0, swap("15", "3"), STUCK),
    at("empty by one pair", r"mbarrier\.init[^;]*, 2;", 0, last_number_plus(-1), ANY),
    at("sums announced to the first pair only", TO_CTAS, 0, to_pair(0), STUCK),
    at("sums announced to the second pair only", TO_CTAS, 0, to_pair(1), STUCK),
    at("rows gathered for the first CTA only", TO_CTAS, 1, lambda match: "mov.b16 m, 1;", ANY),
    at("rows gathered for both CTAs of a pair", TO_CTAS, 1, to_pair(0), ANY),
    before("rows not expected", GATHER, 0, EXPECT, gone, STUCK),
    at("four rows not gathered", GATHER, 0, gone, STUCK),
    at("a pair does not get the work tile", SEND_TICKET, 1, gone, STUCK),
    before("sums read before they are there", AFTER, -1, WAIT, never, ANY),
)
