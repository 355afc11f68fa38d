"""Faults for the kernel that makes routing tables: what its threads and ranks wait for and tell each other, each taken out or weakened.

Between two pairs that a lane places in one of the two sorts lie the barriers of the other, so a sort's second barrier is not among them.
"""

from __future__ import annotations

from ep_faults import ACQUIRES, ANY, BETWEEN_RANKS, IN_GPU, NAMED, nearer, relaxed
from kernel_faults import SPIN, gone, smaller_scope, swap, taken, twice
from sm90_faults import NOT_ORDERED, STUCK, WARP_BARRIER, Sm90Fault, after, at

MEETING = r"bar\.sync\s+0;"  # of all threads
STORE = r"st\.global\.b32[^;]*;"
COUNTED = r"red\.relaxed\.cta\.shared::cta\.add\.u32[^;]*;"
MEETINGS = (
    "counters cleared",
    "pairs counted",
    "sums of lists",
    "first pairs of lists",
    "sums of rows",
    "first rows",
    "places of pairs",
)
STORES = ("splits", "pulls", "expert_rows", "recv_pairs", "pair_rows", "send_pairs")
FAULTS: tuple[Sm90Fault, ...] = (
    *(at(f"threads do not meet: {name}", MEETING, index, gone, NOT_ORDERED) for index, name in enumerate(MEETINGS)),
    *(at(f"{name} not stored", STORE, index, gone, ANY) for index, name in enumerate(STORES)),
    at("launch not counted", STORE, -1, gone, ANY),
    at("row of a pair not counted", COUNTED, 0, gone, NOT_ORDERED),
    at("pair of a list not counted", COUNTED, 1, gone, NOT_ORDERED),
    at("row of a pair counted twice", COUNTED, 0, twice, NOT_ORDERED),
    at("pair of a list counted twice, later", COUNTED, 3, twice, NOT_ORDERED),
    at("ranks told by threads that have not met", NAMED, 0, gone, ("race",)),
    at("ranks waited for by one thread alone", NAMED, 1, gone, NOT_ORDERED),
    at("rank not told", BETWEEN_RANKS, 0, gone, STUCK),
    at("rank told twice", BETWEEN_RANKS, 0, twice, ANY),
    at("rank told without release", BETWEEN_RANKS, 0, swap(".release", ".relaxed"), ("race",)),
    at("rank told within the GPU", BETWEEN_RANKS, 0, lambda match: smaller_scope(match[0]), ("race",)),
    at("ranks not waited for", SPIN, 0, taken, NOT_ORDERED),
    at("ranks waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    at("ranks waited for within the GPU", ACQUIRES, 0, nearer, ("race",)),
    at("row passed while a lane reads it", WARP_BARRIER, 0, gone, ("race",)),
    at("list passed while a lane reads it", WARP_BARRIER, 2, gone, ("race",)),
    after("row not passed", WARP_BARRIER, 0, r"st\.shared\.b32[^;]*;", gone, NOT_ORDERED),
    after("list not passed", WARP_BARRIER, 2, r"st\.shared\.b32[^;]*;", gone, NOT_ORDERED),
)
NOT_WAITED_FOR = r"red\.relaxed\.gpu[^;]*;"
"""Arrivals of a CTA alone, and of a CTA without a turn."""
SEVERAL: tuple[Sm90Fault, ...] = (
    *(at(f"{name} of a CTA not stored", STORE, index, gone, ANY) for index, name in enumerate(("rows", "pulls"))),
    *(at(f"{name} not stored", STORE, 2 + index, gone, ANY) for index, name in enumerate(STORES)),
    at("launch not counted", STORE, -1, gone, ANY),
    at("CTA arrives before its threads have", NAMED, 0, gone, ("race",)),
    at("CTAs waited for by one thread alone", NAMED, 1, gone, NOT_ORDERED),
    at("ranks told by threads that have not met", NAMED, 2, gone, ("race",)),
    at("ranks waited for by one thread alone", NAMED, 3, gone, NOT_ORDERED),
    at("CTA does not arrive", IN_GPU, 0, gone, STUCK),
    at("CTA arrives twice", IN_GPU, 0, twice, ANY),
    at("CTA arrives without release", IN_GPU, 0, swap(".release", ".relaxed"), ("race",)),
    at("CTA arrives for itself", IN_GPU, 0, lambda match: smaller_scope(match[0]), ("race",)),
    at("CTA alone does not arrive", NOT_WAITED_FOR, 0, gone, STUCK),
    at("CTA alone arrives twice", NOT_WAITED_FOR, 0, twice, ANY),
    at("CTA without a turn does not arrive", NOT_WAITED_FOR, -1, gone, STUCK),
    at("CTA without a turn arrives twice", NOT_WAITED_FOR, -1, twice, ANY),
    at("CTAs not waited for", SPIN, 0, taken, NOT_ORDERED),
    at("CTAs waited for without acquire", ACQUIRES, 0, relaxed, ("race",)),
    at("CTAs waited for within the CTA", ACQUIRES, 0, nearer, ("race",)),
    at("rank not told", BETWEEN_RANKS, 0, gone, STUCK),
    at("rank told without release", BETWEEN_RANKS, 0, swap(".release", ".relaxed"), ("race",)),
    at("ranks not waited for", SPIN, 1, taken, NOT_ORDERED),
    at("ranks waited for without acquire", ACQUIRES, 1, relaxed, ("race",)),
)
SUBJECTS = {"tables": FAULTS, "tables of several CTAs": SEVERAL}
CASES = tuple((fault, name) for name, faults in SUBJECTS.items() for fault in faults)
SAMPLE = CASES[::12]
