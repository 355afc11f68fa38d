"""Faults for the kernels of the unfused layer's stages: what their roles wait for and signal, each taken out or weakened on its own
(sm90_faults.py has the means, gemm_faults.py what any ring can have)."""

from __future__ import annotations

from gemm_faults import ALONE, ANY, RING, TILES
from kernel_faults import SPIN, gone, smaller_scope, swap, taken
from sm90_faults import FENCE_SHARED, NOT_ORDERED, STUCK, WAIT, WGMMA, Sm90Fault, after, at, before, never

TABLE = r"mbarrier\.arrive\.shared::cta[^;]*;"
SIGNAL = r"red\.release\.[^;]*;"
BULK_LOAD = r"cp\.async\.bulk\.shared::cluster\.global[^;]*;"
BULK_STORE = r"cp\.async\.bulk\.global\.shared::cta[^;]*;"
COUNTER = r"st\.global\.b32 [^;]*, 0;"
META = r"cp\.async\.bulk\.wait_group 0;"
ACQUIRE = r"ld\.acquire\.sys\.global\.b32[^;]*;"
NAMED = r"barrier\.cta\.sync\.aligned 2, 384;"
SYSTEM_FENCE = r"fence\.acq_rel\.sys;(?=\s*// end inline asm\s*(?:[^;]*;\s*)*?//?.*?red\.relaxed\.sys)"
TABLE_STORE = r"st\.shared\.v2\.b32[^;]*;"

DISPATCH = (
    before("counts of other ranks not waited for", TABLE_STORE, 0, SPIN, taken, ANY),
    after("table not signalled", TABLE_STORE, -1, TABLE, gone, STUCK),
    at("row not stored", BULK_STORE, 0, gone, NOT_ORDERED),
    before("row stored before it is there", BULK_STORE, 0, WAIT, never, NOT_ORDERED),
)
SWIGLU = (
    after("table not waited for", TABLE_STORE, -1, WAIT, never, NOT_ORDERED),
    at("tiles of Linear2 not counted anew", COUNTER, -1, gone, ANY),
    at("scale not stored", r"st\.global\.f32[^;]*;", -1, gone, NOT_ORDERED),
)
COMBINE = (
    after("table not waited for", TABLE_STORE, -1, WAIT, never, ANY),
    at("results not sent", r"st\.global\.v4\.b32[^;]*;", 0, gone, NOT_ORDERED),
    at("ranks not told", SIGNAL, -1, gone, STUCK),
    at("ranks told without release", SIGNAL, -1, swap(".release", ".relaxed"), ("race",)),
    at("ranks told within the GPU", SIGNAL, -1, lambda match: smaller_scope(match[0]), ("race",)),
    before("ranks not waited for", NAMED, -1, SPIN, taken, ANY),
    before("results summed before they are there", BULK_STORE, 0, WAIT, never, NOT_ORDERED),
    at("sum without proxy fence", FENCE_SHARED, -1, gone, ("race",)),
    at("workspace cleared early", NAMED, 0, gone, ANY),
)
CASES: tuple[tuple[Sm90Fault, str], ...] = (
    *((fault, "moe_dispatch") for fault in DISPATCH),
    *((fault, "moe_swiglu") for fault in SWIGLU),
    *((fault, "moe_combine") for fault in COMBINE),
    *((fault, name) for fault in (*RING, *ALONE, *TILES, *WGMMA) for name in ("moe_fc1", "moe_fc2")),
)
SAMPLE = CASES[::8]
