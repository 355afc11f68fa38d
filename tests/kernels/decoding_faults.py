"""Faults of what decodes E2M1 weights, in GEMMs and in the fused kernel: of the decoded values, of their scales, and of the hand-over where
warps of their own decode (gemm_faults.py and test_sm90_faults.py have the kernels)."""

from __future__ import annotations

import re

from kernel_faults import gone, last_number_plus, swap, twice
from sm90_faults import (
    ARRIVE,
    EXPECT,
    FENCE_SHARED,
    GROUP_WAIT,
    LOAD,
    MAP_TO_CTA,
    NOT_ORDERED,
    STUCK,
    WAIT,
    WARP_BARRIER,
    WGMMA_FENCE,
    after,
    at,
    before,
    never,
)

ANY = (*NOT_ORDERED, *STUCK)
WRONG = ("wrong result",)
TABLE_STORE = r"st\.shared\.v2\.b32 [^;]*;"
PICK = r"prmt\.b32 (%r\d+), (%r\d+), (%r\d+), (%r\d+);"
STEP = r"prmt\.b32 %r\d+, %r\d+, 0, 1747\d;"
SIGNS = r"and\.b32\s+%r\d+, %r\d+, -2139062144;"
ROTATED = r"shf\.l\.wrap\.b32\s+%r\d+, %r\d+, %r\d+, 28;"
ROTATED_BY_LANE = r"shf\.r\.wrap\.b32 (%r\d+), (%r\d+), %r\d+, %r\d+;"
SECOND_RUN = r"shr\.u32\s+%r\d+, %r\d+, 16;"
SCALED = r"mul\.f32\s+(%r\d+), (%r\d+), (%r\d+);"
TINY = r"and\.b32\s+%r\d+, %r\d+, 1145324612;"
STORE_FOUR = r"st\.shared\.v4\.b32 [^;]*;"
STORE_WORD = r"st\.shared\.b32 \[%r\d+\], %r\d+;"
CHOSEN = r"selp\.b32\s+(%r\d+), (%r\d+), (%r\d+), (%p\d+);"
OTHER_PLACE = r"shr\.u32\s+(%r\d+), (%r\d+), (%r\d+);"
CTA_BARRIER = r"(?:bar|barrier)\.(?:cta\.)?sync(?:\.aligned)?\s+0;"


def entry_swapped(match: re.Match[str]) -> str:
    return f"prmt.b32 {match[1]}, {match[3]}, {match[2]}, {match[4]};"


def choice_swapped(match: re.Match[str]) -> str:
    return f"selp.b32 {match[1]}, {match[3]}, {match[2]}, {match[4]};"


def unscaled(match: re.Match[str]) -> str:
    return f"mov.b32 {match[1]}, {match[3]};"


def unscaled_sum(match: re.Match[str]) -> str:
    return f"mov.b32 {match[1]}, {match[2]};"


def pair_swapped(match: re.Match[str]) -> str:
    return re.sub(r"\{(%r\d+), (%r\d+)\}", r"{\2, \1}", match[0])


VALUES = (
    at("halves of an entry swapped", PICK, 0, entry_swapped, WRONG),
    at("shift of another step", STEP, 0, last_number_plus(1), WRONG),
    at("signs of the other run", SIGNS, 0, swap("-2139062144", "134744072"), WRONG),
    after("second run decoded as the first", PICK, 0, SECOND_RUN, last_number_plus(-16), WRONG),
)
"""What a code, its sign and its shift make of a byte."""
LOOP = (
    at("last group not waited for", GROUP_WAIT, -1, gone, NOT_ORDERED),
    at("wgmma without fence", WGMMA_FENCE, 0, gone, ("simulator error",)),
    at("a wgmma dropped", r"wgmma\.mma_async[^;]*;", 1, gone, NOT_ORDERED),
    at("a partial sum not cleared", r"setp\.ne\.b32 p, 0, 0;", 0, lambda match: "setp.ne.b32 p, 1, 0;", NOT_ORDERED),
    at("the power of a row left out", SCALED, -1, unscaled_sum, WRONG),
    at("table not waited for", CTA_BARRIER, 0, gone, ANY),
)
IN_PARTS = (
    at("codes not fetched", LOAD, -2, gone, STUCK),
    at("records not fetched", LOAD, -1, gone, STUCK),
    before("records not expected", LOAD, -1, EXPECT, last_number_plus(-512), ANY),
)
"""Of GEMMs, whose stages have parts of packed tiles."""
DECODING_FAULTS = (
    *VALUES,
    at("halves of the table's entries swapped", TABLE_STORE, 0, pair_swapped, WRONG),
    at("table not written", TABLE_STORE, 0, gone, NOT_ORDERED),
    at("shifts of the row 8 further not rotated", ROTATED, 0, last_number_plus(-28), WRONG),
    at("scale of the tile left out", SCALED, 0, unscaled, WRONG),
)
BLOCKS = (
    before("shifts of the group's other block", PICK, 0, CHOSEN, choice_swapped, WRONG),
    at("exponents of the group's other block", OTHER_PLACE, -1, lambda match: f"shr.u32 {match[1]}, {match[2]}, 0;", WRONG),
)
"""Of a warpgroup that has one block of a group."""
TWO_WAITS = f"{WAIT}(?=(?:(?!{WAIT}).)*{WAIT}(?:(?!{WAIT}).)*{TINY})"
DECODED = f"{TINY}.*?{FENCE_SHARED}"
HANDED_OVER = f"{DECODED}.*?{ARRIVE}"
LAST_WAIT = f"{WAIT}(?=(?:(?!{WAIT}).)*{TINY})"
DECODED_FAULTS = (
    *VALUES,
    at("shifts of the row 8 further not rotated", ROTATED_BY_LANE, 0, lambda match: f"mov.b32 {match[1]}, {match[2]};", WRONG),
    at("first group not waited for", GROUP_WAIT, 0, gone, NOT_ORDERED),
    before("decoded tile written before it has been read", TINY, 0, WAIT, never, NOT_ORDERED),
    at("codes_full not waited for", TWO_WAITS, 0, never, NOT_ORDERED),
    after("decoded tile without proxy fence", TINY, 0, FENCE_SHARED, gone, ("race",)),
    after("lanes not together after decoding", DECODED, 0, WARP_BARRIER, gone, ("race",)),
    after("full not signalled by decode warps", DECODED, 0, ARRIVE, gone, STUCK),
    after("codes_empty not signalled", HANDED_OVER, 0, ARRIVE, gone, STUCK),
    at("full by a decode warp less", r"mbarrier\.init[^;]*, 5;", 0, last_number_plus(-1), ANY),
    at("codes_empty by a decode warp less", r"mbarrier\.init[^;]*, 4;", 0, last_number_plus(-1), ANY),
    after("a matrix of decoded values not stored", TINY, 0, STORE_FOUR, gone, NOT_ORDERED),
    after("a stage's scales not stored, first word", LAST_WAIT, 0, STORE_WORD, gone, NOT_ORDERED),
    before("a stage's scales not stored, last word", TINY, 0, STORE_WORD, gone, NOT_ORDERED),
    at("scale of the tile left out", SCALED, 0, unscaled_sum, NOT_ORDERED),
)
COPY = r"cp\.async\.bulk\.shared::cluster\.shared::cta[^;]*;"
OF_A_HALF = r"selp\.b32\s+%r\d+, 9216, 17408, %p\d+;"
FROM_OTHER = r"selp\.b32\s+%r\d+, 16896, 512, %p\d+;"


def to_itself(match: re.Match[str]) -> str:
    target, source = re.findall(r"%r\d+", match[0])[:2]
    return f"mov.b32 {target}, {source};"


HALVED_FAULTS = (
    at("rows of one block not copied", COPY, 0, gone, STUCK),
    at("rows of the other block not copied", COPY, 1, gone, STUCK),
    at("rows copied twice", COPY, 0, twice, ANY),
    at("fewer rows copied", COPY, -1, swap("2048", "1024"), STUCK),
    before("rows copied to this CTA", COPY, 0, MAP_TO_CTA, to_itself, ANY),
    before("rows copied without proxy fence", COPY, 0, FENCE_SHARED, gone, ("race",)),
    before("rows copied before other lanes have stored theirs", COPY, 0, WARP_BARRIER, gone, ("race",)),
    after("own half not signalled", COPY, -1, ARRIVE, gone, STUCK),
    at("empty by the warps of one CTA", r"mbarrier\.init[^;]*, 16;", 0, last_number_plus(-8), ANY),
    at("work_tile_empty without the warp that stores", r"mbarrier\.init[^;]*, 864;", 0, last_number_plus(-32), ANY),
    at("bytes of the other CTA not expected", FROM_OTHER, 0, swap("16896", "512"), ANY),
    at("a whole tile of codes expected, first stage", OF_A_HALF, 0, swap("9216", "17408"), STUCK),
    at("the other group's codes not fetched, first stage", LOAD, 2, gone, STUCK),
    at("records not fetched, first stage", LOAD, 1, gone, STUCK),
)
"""Of two CTAs that decode a half of a tile each."""
