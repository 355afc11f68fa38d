"""Faults for the GEMM kernel: what its roles wait for and signal, each taken out or weakened on its own (sm90_faults.py has the means)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from decoding_faults import BLOCKS, DECODED_FAULTS, DECODING_FAULTS, IN_PARTS, LOOP
from kernel_faults import CLUSTER_BARRIER, gone, last_number_plus, swap, twice
from pair_gather_faults import PAIR_GATHER_FAULTS, PLAIN_GATHER_FAULTS, TWO_PAIRS_FAULTS
from pair_gemm_faults import PAIR_FAULTS, PLAIN_PAIR_FAULTS
from pair_gradient_faults import MXFP8_GRADIENT_FAULTS, PAIR_GRADIENT_FAULTS, PAIR_SUM_FAULTS
from sm90_faults import (
    ARRIVE,
    DRAW,
    EXPECT,
    FENCE_SHARED,
    GROUP_WAIT,
    LOAD,
    MAP_TO_CTA,
    MULTICAST_MASK,
    NOT_ORDERED,
    PUBLISH,
    RELEASE,
    REMOTE_ARRIVE,
    SEND_TICKET,
    STMATRIX,
    STORE,
    STUCK,
    TICKET,
    WAIT,
    WGMMA,
    WGMMA_FENCE,
    Sm90Fault,
    after,
    at,
    before,
    fewer_bytes,
    never,
    to_first_cta,
)

from gather_runs import EVERYTHING_GATHERED, EVERYTHING_GATHERED_IN_PAIRS, GatherRun
from gemm_runs import EVERYTHING, FP4, GROUPED, PLAIN, SPLIT, SWAPPED, Run, groups
from gradient_runs import (
    EVERYTHING_OF_GRADIENTS,
    EVERYTHING_OF_GRADIENTS_FP8,
    EVERYTHING_OF_MXFP8_GRADIENTS,
    EVERYTHING_OF_PAIR_GRADIENTS,
    EVERYTHING_SUMMED,
    EVERYTHING_SUMMED_BY_PAIRS,
    EVERYTHING_SUMMED_FP8,
    EVERYTHING_SUMMED_IN_MXFP8,
    ROWS_IN_PAIRS,
    TOKENS_IN_PAIRS,
    VarlenKRun,
)
from pair_gather_runs import EVERYTHING_OF_PAIRS, EVERYTHING_OF_TWO_PAIRS, PLAIN_OF_PAIRS
from pair_gemm_runs import PLAIN_SUBJECT, SUBJECT
from ptx_of import artifact

READ_WAIT = r"cp\.async\.bulk\.wait_group\.read \d;"
COMMIT = r"cp\.async\.bulk\.commit_group;"
COUNT = r"red\.relaxed\.gpu\.global\.add\.u32[^;]*;"
COPY_ROW = r"cp\.async\.cg\.[^;]*;"
COPY_SCALE = r"cp\.async\.ca\.[^;]*;"
COPIED = r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64 \[(%r\d+)\];"
RELEASE_FAR = r"@p mbarrier\.arrive\.shared::cluster[^;]*;"
ANY = (*NOT_ORDERED, *STUCK)


@dataclass(frozen=True)
class Subject:
    """A run in which everything happens, and launches of it that follow one another."""

    run: Run | GatherRun | VarlenKRun
    launches: int = 2


SUBJECTS = {
    "rows": Subject(Run("faults-rows", (200,), 128, 192, {"n": 416, "k": 384}, {"num_sms": 2, "num_stages": 2})),
    "columns": Subject(Run("faults-columns", (40,), 24, 64, {"n": 208, "k": 384}, {"num_sms": 2, "num_stages": 2, "swap_ab": True})),
    "k_in_flight": Subject(Run("faults-ahead", (70,), 64, 64, {"n": 208, "k": 640}, {"num_sms": 2, "num_stages": 3, "k_in_flight": 2})),
    "pairs": Subject(Run("faults-pairs", GROUPED, 128, 128, groups("packed"), {**EVERYTHING, "num_stages": 2}), launches=3),
    "split": Subject(Run("faults-split", (200,), 128, 72, {"n": 208, "k": 384}, {**SPLIT, "num_sms": 2, "num_stages": 2})),
    "unscaled": Subject(Run("faults-bf16", (200,), 128, 192, {"n": 416, "k": 256, **PLAIN}, {"num_sms": 2, "num_stages": 2})),
    "decoding": Subject(Run("faults-decoding", (20,), 24, 64, {"n": 336, "k": 384, **FP4}, {**SWAPPED, "num_sms": 2, "num_stages": 2})),
    "decoded": Subject(Run("faults-decoded", (300,), 256, 128, {"n": 384, "k": 384, **FP4}, {"num_sms": 2, "num_stages": 2})),
    "CTA pair": Subject(SUBJECT),
    "unscaled CTA pair": Subject(PLAIN_SUBJECT),
    "gathered": Subject(EVERYTHING_GATHERED, launches=1),
    "gathered in pairs": Subject(EVERYTHING_GATHERED_IN_PAIRS, launches=3),
    "gathered by a pair": Subject(EVERYTHING_OF_PAIRS, launches=1),
    "unscaled, gathered by a pair": Subject(PLAIN_OF_PAIRS, launches=1),
    "gathered by two pairs": Subject(EVERYTHING_OF_TWO_PAIRS, launches=1),
    "sums over rows": Subject(EVERYTHING_SUMMED, launches=1),
    "sums over rows in FP8": Subject(EVERYTHING_SUMMED_FP8, launches=1),
    "gradients": Subject(EVERYTHING_OF_GRADIENTS, launches=1),
    "gradients in FP8": Subject(EVERYTHING_OF_GRADIENTS_FP8, launches=1),
    "gradients in pairs": Subject(ROWS_IN_PAIRS, launches=3),
    "transposed in pairs": Subject(TOKENS_IN_PAIRS, launches=3),
    "sums over rows by a pair": Subject(EVERYTHING_SUMMED_BY_PAIRS, launches=1),
    "gradients of a pair": Subject(EVERYTHING_OF_PAIR_GRADIENTS, launches=1),
    "sums over rows in MXFP8": Subject(EVERYTHING_SUMMED_IN_MXFP8),
    "gradients in MXFP8": Subject(EVERYTHING_OF_MXFP8_GRADIENTS, launches=1),
}
"""`pairs`: groups with one, two and no row blocks, so that CTAs share either operand, none, and one of them works alone.  `CTA pair`: on
SM100.  `decoding` and `decoded`: E2M1 weights of two packed tiles, decoded by those that multiply and by warps of their own."""

MATH_WARPS = r"mbarrier\.init[^;]*, 8;"
RING = (
    before("empty not waited for by the token loader", LOAD, 0, WAIT, never, NOT_ORDERED),
    before("empty not waited for by the weight loader", LOAD, -1, WAIT, never, ANY),
    before("full not waited for, first", WGMMA_FENCE, 0, WAIT, never, NOT_ORDERED),
    before("full not waited for, last", GROUP_WAIT, -1, WAIT, never, NOT_ORDERED),
    before("token bytes too few", LOAD, 0, EXPECT, fewer_bytes, ANY),
    before("weight bytes too many", LOAD, -1, EXPECT, last_number_plus(16), STUCK),
    at("full by one loader", r"mbarrier\.init[^;]*, 2;", 0, last_number_plus(-1), ANY),
)
ALONE = (
    after("empty not signalled", GROUP_WAIT, -1, ARRIVE, gone, STUCK),
    after("work_tile_empty not signalled, first tile", TICKET, 0, RELEASE, gone, STUCK),
)
BOXES = (
    at("box without proxy fence", FENCE_SHARED, 0, gone, ("race",)),
    at("box not stored", STORE, 0, gone, NOT_ORDERED),
    after("box not committed", STORE, 0, COMMIT, gone, NOT_ORDERED),
    before("box filled while it is read", STMATRIX, 0, READ_WAIT, gone, NOT_ORDERED),
)
TILES = (
    before("work_tile_full not waited for, first tile", TICKET, 0, WAIT, never, NOT_ORDERED),
    before("work_tile_full not waited for, later tiles", TICKET, 1, WAIT, never, ANY),
    at("work tile not published", PUBLISH, 0, gone, ANY),
)
PAIRS = (
    at("multicast to one CTA", MULTICAST_MASK, 0, lambda match: "mov.u16 m, 1;", ANY),
    before("stage given back to one CTA", REMOTE_ARRIVE, 0, MAP_TO_CTA, to_first_cta, ANY),
    at("stage not given back to any CTA", REMOTE_ARRIVE, 0, gone, STUCK),
    at("empty by the warps of one CTA", r"mbarrier\.init[^;]*, 16;", 0, last_number_plus(-8), ANY),
    at("work tile not sent", SEND_TICKET, 0, gone, STUCK),
    at("work tile not expected", r"mbarrier\.arrive\.expect_tx\.relaxed\.cluster[^;]*;", 0, gone, STUCK),
    at("barriers used before they are there", CLUSTER_BARRIER, 0, gone, ("simulator error", "race")),
    at("counter not set back", COUNT, 0, gone, ANY),
    at("counter set back twice", COUNT, 0, twice, ANY),
    at("no number fetched", DRAW, 0, lambda match: match[0].replace(", 2;", ", 0;"), ANY),
)
COLUMNS = (
    at("columns to one CTA", MULTICAST_MASK, -1, lambda match: "mov.u16 m, 1;", ANY),
    at("the last columns not fetched where CTAs have others", LOAD, -1, gone, STUCK),
    before("empty not waited for by the weight loader", LOAD, -1, WAIT, never, ANY),
)
"""Of 64 each, by a loader warp that fetches half of them for both CTAs, or all."""
EXCHANGE = (
    at("a sum not sent", SEND_TICKET, -1, gone, STUCK),
    before("exchange_empty not waited for", SEND_TICKET, -1, WAIT, never, ANY),
    at("exchange_empty not signalled", RELEASE_FAR, -1, gone, STUCK),
    at("exchange_empty by a thread less", r"mbarrier\.init[^;]*, 128;", 0, last_number_plus(-1), ANY),
    at("exchange bytes too few", EXPECT, -1, last_number_plus(-16), ANY),
    after("exchange_full not waited for", EXPECT, -1, WAIT, never, NOT_ORDERED),
)
ACCUMULATING = (
    # Registers of sums that are not cleared are zero before the first K block, too.
    *(one for one in WGMMA if one.name != "a partial sum not cleared"),
    at("sums forget all K blocks but the last", r"setp\.ne\.b32 p, 1, 0;", 0, lambda match: "setp.ne.b32 p, 0, 0;", NOT_ORDERED),
)
GATHER_FAULTS = (
    at("rows of tokens without proxy fence", FENCE_SHARED, 0, gone, ("race",)),
    at("rows of tokens without proxy fence, later stages", FENCE_SHARED, 1, gone, ("race",)),
    at("full before rows are copied", COPIED, 0, lambda match: f"mbarrier.arrive.shared::cta.b64 _, [{match[1]}];", NOT_ORDERED),
    at("full counts a thread more for each that arrives", COPIED, 0, swap(".noinc", ""), STUCK),
    at("full not signalled by threads", COPIED, 0, gone, STUCK),
    at("full by a thread less", r"mbarrier\.init[^;]*, 129;", 0, last_number_plus(-1), (*ANY, "warning")),
    at("a row not copied", COPY_ROW, 1, gone, NOT_ORDERED),
    at("a scale not copied", COPY_SCALE, 0, gone, NOT_ORDERED),
    before("empty not waited for by a warp that gathers", COPY_ROW, 0, WAIT, never, NOT_ORDERED),
    at("where rows begin not stored", r"st\.shared\.b32[^;]*;", 0, gone, NOT_ORDERED),
)
ADDED = r"cp\.reduce\.async\.bulk\.tensor[^;]*;"
IN_STEP = r"bar\.warp\.sync[^;]*;"
ADDED_FAULTS = (
    at("sums without proxy fence", FENCE_SHARED, -1, gone, ("race",)),
    at("sums not added", ADDED, 0, gone, NOT_ORDERED),
    after("added sums not committed", ADDED, 0, COMMIT, gone, NOT_ORDERED),
    at("a box filled while it is added", READ_WAIT, 0, gone, NOT_ORDERED),
    *(at(f"a warp's lanes not in step, place {place}", IN_STEP, place, gone, ("race",)) for place in range(-4, 0)),
)
GRADIENT_FAULTS = (
    *(at(f"a warp's lanes not in step, place {place}", IN_STEP, place, gone, ("race",)) for place in range(-6, 0)),
    at("a box read before it has come", r"cp\.async\.wait_group[^;]*;", 0, last_number_plus(1), NOT_ORDERED),
    at("the last box read before it has come", r"cp\.async\.wait_group[^;]*;", -1, gone, NOT_ORDERED),
    at("copies of a box not a group", r"cp\.async\.commit_group;", -1, gone, NOT_ORDERED),
)
"""Of the box that gate and up come to and gradients leave from: copied, read, written, stored; then the weighted product."""
SUMMED_RING = (*RING[1:-1], *ALONE, *TILES, *ACCUMULATING, *GATHER_FAULTS[:5], GATHER_FAULTS[6])
CASES: tuple[tuple[Sm90Fault, str], ...] = (
    *((fault, "rows") for fault in (*RING, *ALONE, *WGMMA, *BOXES, *TILES)),
    *((fault, "columns") for fault in (*RING, *ALONE, *BOXES)),
    *((fault, "k_in_flight") for fault in (*RING, *WGMMA)),
    *((fault, "pairs") for fault in (*PAIRS, *BOXES, *TILES)),
    *((fault, "split") for fault in (*EXCHANGE, *BOXES, *TILES)),
    *((fault, "unscaled") for fault in (*RING, *ALONE, *ACCUMULATING)),
    *((fault, "decoding") for fault in (*DECODING_FAULTS, *BLOCKS, *RING, *ALONE, *LOOP, *IN_PARTS)),
    *((fault, "decoded") for fault in (*DECODED_FAULTS, *LOOP, *IN_PARTS)),
    *((fault, "CTA pair") for fault in PAIR_FAULTS),
    *((fault, "unscaled CTA pair") for fault in PLAIN_PAIR_FAULTS),
    *((fault, "gathered") for fault in GATHER_FAULTS),
    *((fault, "gathered in pairs") for fault in (*PAIRS, *GATHER_FAULTS[2:5])),
    *((fault, "gathered by a pair") for fault in PAIR_GATHER_FAULTS),
    *((fault, "unscaled, gathered by a pair") for fault in PLAIN_GATHER_FAULTS),
    *((fault, "gathered by two pairs") for fault in TWO_PAIRS_FAULTS),
    *((fault, "sums over rows") for fault in (*SUMMED_RING, *ADDED_FAULTS)),
    *((fault, "sums over rows in FP8") for fault in (*RING, *ALONE, *ADDED_FAULTS)),
    *((fault, "gradients in pairs") for fault in (*PAIRS, *COLUMNS[1:], *GATHER_FAULTS[2:5], *GRADIENT_FAULTS[::3])),
    *((fault, "transposed in pairs") for fault in (*PAIRS, *COLUMNS, *BOXES)),
    *((fault, "sums over rows by a pair") for fault in (*PLAIN_PAIR_FAULTS, *PAIR_SUM_FAULTS)),
    *((fault, "gradients of a pair") for fault in PAIR_GRADIENT_FAULTS),
    *((fault, "sums over rows in MXFP8") for fault in PAIR_FAULTS),
    *((fault, "gradients in MXFP8") for fault in MXFP8_GRADIENT_FAULTS),
    *((fault, "gradients") for fault in (*RING[1:-1], *GATHER_FAULTS[:7], GATHER_FAULTS[8], *GRADIENT_FAULTS)),
    *((fault, "gradients in FP8") for fault in (*RING[1:-1], *WGMMA, *GATHER_FAULTS[:9], *GRADIENT_FAULTS)),
)


@cache
def ptx_of_subject(subject: str) -> str:
    return artifact(SUBJECTS[subject].run.config).ptx
