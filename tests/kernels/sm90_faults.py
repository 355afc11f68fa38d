"""Faults for what is the SM90 kernel's own: the store warp, the loaders, the wgmma groups and the math warps' hand-overs.

A fault is found by what it stands next to, so it stays the same fault when the kernel changes elsewhere: the nearest instruction that
matches `pattern` before or after an anchor.  `kernel_faults` has the changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kernel_faults import CLUSTER_BARRIER, SPIN, gone, last_number_plus, smaller_scope, swap, taken, twice

WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;"
ARRIVE = r"mbarrier\.arrive\.shared::cta[^;]*;"
RELEASE = r"@p mbarrier\.arrive\.shared::cta[^;]*;"
EXPECT = r"mbarrier\.arrive\.expect_tx[^;]*;"
INIT_BY_WARPS = r"mbarrier\.init[^;]*, 8;"
INIT_BY_TICKET_READERS = r"mbarrier\.init[^;]*, 352;"
INIT_BY_LOADERS = r"mbarrier\.init[^;]*, 2;"
SIGNAL = r"red\.release\.gpu\.global\.or\.b64 [^;]*;"
STORE = r"cp\.async\.bulk\.tensor\.2d\.global[^;]*;"
TICKET = r"ld\.shared\.v4\.b32[^;]*;"
PUBLISH = r"st\.shared\.v4\.b32[^;]*;"
DRAW = r"atom\.relaxed\.gpu\.global\.add\.u32[^;]*;"
CLEAR = r"st\.global\.b32 [^;]*, 0;"
LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;"
GROUP_WAIT = r"wgmma\.wait_group\.sync\.aligned \d;"
FENCE_SHARED = r"fence\.proxy\.async\.shared::cta;"
STMATRIX = r"stmatrix[^;]*;"
WARP_BARRIER = r"bar\.warp\.sync[^;]*;"
LATE_STMATRIX = f"{STMATRIX}(?!.*{GROUP_WAIT})"
WGMMA_FENCE = r"wgmma\.fence\.sync\.aligned;"
STORE_MAXIMA = r"st\.shared\.(v2\.)?f32"
EPILOGUE_ALL = r"barrier\.cta\.sync\.aligned 3, 256;"
EPILOGUE_GROUP = r"barrier\.cta\.sync\.aligned %r\d+, 128;"

ROW_STORE = r"cp\.async\.bulk\.global\.shared::cta[^;]*;"
ACQUIRE = r"ld\.acquire\.gpu\.global\.b32 [^;]*;"
FREE = r"red\.release\.gpu\.global\.add\.u32 [^;]*;"
MULTICAST_MASK = r"cvt\.u16\.u32 m, [^;]*;"
REMOTE_ARRIVE = r"(?<!@p )mbarrier\.arrive\.shared::cluster\.b64[^;]*;"
MAP_TO_CTA = r"mapa\.shared::cluster\.u32[^;]*;"
SEND_TICKET = r"st\.async[^;]*;"

NOT_ORDERED = ("race", "simulator error", "wrong result")
STUCK = ("deadlock", "watchdog")
Change = Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Sm90Fault:
    """What `change` makes of one instruction.

    anchor     a pattern, and which of its matches: 0 the first, -1 the last
    direction  0: the anchor itself (`pattern` is empty); -1: the last match of `pattern` before it; 1: the first one after it
    signs      kinds of `test_sm90_faults.how_noticed` that may show it
    """

    name: str
    anchor: tuple[str, int]
    direction: int
    pattern: str
    change: Change
    signs: tuple[str, ...]

    def place(self, ptx: str) -> re.Match[str]:
        anchor = list(re.finditer(self.anchor[0], ptx, re.S))[self.anchor[1]]
        if not self.direction:
            return anchor
        matches = list(re.finditer(self.pattern, ptx, re.S))
        if self.direction < 0:
            return [m for m in matches if m.end() <= anchor.start()][-1]
        return next(m for m in matches if m.start() >= anchor.end())

    def apply(self, ptx: str) -> str:
        match = self.place(ptx)
        return ptx[: match.start()] + self.change(match) + ptx[match.end() :]


def at(name: str, pattern: str, which: int, change: Change, signs: tuple[str, ...]) -> Sm90Fault:
    return Sm90Fault(name, (pattern, which), 0, "", change, signs)


def before(name: str, anchor: str, which: int, pattern: str, change: Change, signs: tuple[str, ...]) -> Sm90Fault:
    return Sm90Fault(name, (anchor, which), -1, pattern, change, signs)


def after(name: str, anchor: str, which: int, pattern: str, change: Change, signs: tuple[str, ...]) -> Sm90Fault:
    return Sm90Fault(name, (anchor, which), 1, pattern, change, signs)


def never(match: re.Match[str]) -> str:
    """A wait that is over at once."""
    return "setp.eq.s32 p, 0, 0;"


def fewer_bytes(match: re.Match[str]) -> str:
    """Of an expectation, a constant or in a register: 16 less."""
    address, count = re.findall(r"\[(%r\d+)\], (%r\d+|\d+);", match[0])[0]
    less = f"{{ .reg .b32 less; sub.s32 less, {count}, 16; "
    return less + match[0].replace(f"[{address}], {count};", f"[{address}], less; }}")


def to_first_cta(match: re.Match[str]) -> str:
    return re.sub(r"%r\d+;", "0;", match[0])


WGMMA = (
    at("first group not waited for", GROUP_WAIT, 0, gone, NOT_ORDERED),
    at("last group not waited for", GROUP_WAIT, -1, gone, NOT_ORDERED),
    at("a group less waited for", GROUP_WAIT, -1, last_number_plus(1), NOT_ORDERED),
    at("wgmma without fence", WGMMA_FENCE, 0, gone, ("simulator error",)),
    at("group not committed", r"wgmma\.commit_group\.sync\.aligned;", -1, gone, NOT_ORDERED),
    at("a wgmma dropped", r"wgmma\.mma_async[^;]*;", 1, gone, NOT_ORDERED),
    at("a partial sum not cleared", r"setp\.ne\.b32 p, 0, 0;", 0, lambda match: "setp.ne.b32 p, 1, 0;", NOT_ORDERED),
)
"""What any main loop of wgmmas can have."""
FAULTS = (
    # --- the store warp
    before("store_full not waited for", STORE, 0, WAIT, never, NOT_ORDERED),
    at("tile not stored", STORE, 0, gone, NOT_ORDERED),
    after("store not committed", STORE, 0, r"cp\.async\.bulk\.commit_group;", gone, NOT_ORDERED),
    after("store_empty before the tile is read", STORE, 0, r"cp\.async\.bulk\.wait_group\.read \d;", gone, NOT_ORDERED),
    after("store_empty not signalled", STORE, 0, ARRIVE, gone, STUCK),
    after("store_empty signalled twice", STORE, 0, ARRIVE, twice, (*NOT_ORDERED, *STUCK)),
    after("news before the tile is written", STORE, 0, r"cp\.async\.bulk\.wait_group \d;", gone, NOT_ORDERED),
    at("news not told", SIGNAL, 0, gone, STUCK),
    at("news without release", SIGNAL, 0, swap(".release", ".relaxed"), ("race",)),
    at("news for this CTA only", SIGNAL, 0, lambda match: smaller_scope(match[0]), ("race",)),
    # --- the math warps' side of it
    before("store_empty not waited for", STMATRIX, 0, WAIT, never, NOT_ORDERED),
    after("Linear1 tile without proxy fence", GROUP_WAIT, -1, FENCE_SHARED, gone, ("race",)),
    after("store_full for lanes that have not met", GROUP_WAIT, -1, WARP_BARRIER, gone, ("race",)),
    after("store_full not signalled", STMATRIX, 0, ARRIVE, gone, STUCK),
    at("store_full by seven warps", INIT_BY_WARPS, -1, last_number_plus(-1), (*NOT_ORDERED, *STUCK)),
    at("store_full by nine warps", INIT_BY_WARPS, -1, last_number_plus(1), STUCK),
    # --- the deal
    before("work_tile_full not waited for, first tile", TICKET, 0, WAIT, never, NOT_ORDERED),
    before("work_tile_full not waited for, later tiles", TICKET, 1, WAIT, never, (*NOT_ORDERED, *STUCK)),
    after("work_tile_full not signalled", DRAW, -1, ARRIVE, gone, STUCK),
    before("work_tile_empty not waited for", DRAW, -1, WAIT, never, (*NOT_ORDERED, *STUCK)),
    after("work_tile_empty not signalled, first tile", TICKET, 0, RELEASE, gone, STUCK),
    after("work_tile_empty not signalled, later tiles", TICKET, 1, RELEASE, gone, STUCK),
    at("work_tile_empty by a lane less", INIT_BY_TICKET_READERS, 0, last_number_plus(-1), (*NOT_ORDERED, *STUCK)),
    at("work_tile_empty by a lane more", INIT_BY_TICKET_READERS, 0, last_number_plus(1), STUCK),
    after("ticket not published", DRAW, -1, PUBLISH, gone, (*NOT_ORDERED, *STUCK)),
    at("block counter not cleared", CLEAR, 1, gone, (*NOT_ORDERED, *STUCK)),
    # --- the ring
    before("empty not waited for by the token loader", LOAD, 0, WAIT, never, NOT_ORDERED),
    before("empty not waited for by the weight loader", LOAD, -1, WAIT, never, (*NOT_ORDERED, *STUCK)),
    after("empty not signalled", GROUP_WAIT, -1, ARRIVE, gone, STUCK),
    at("empty by seven warps", INIT_BY_WARPS, 0, last_number_plus(-1), (*NOT_ORDERED, *STUCK)),
    at("full by one loader", INIT_BY_LOADERS, 0, last_number_plus(-1), (*NOT_ORDERED, *STUCK)),
    before("full not waited for, first stage", GROUP_WAIT, 0, WAIT, never, NOT_ORDERED),
    before("full not waited for, other stages", GROUP_WAIT, -1, WAIT, never, NOT_ORDERED),
    before("token bytes too few", LOAD, 0, EXPECT, fewer_bytes, (*NOT_ORDERED, *STUCK)),
    before("weight bytes too many", LOAD, -1, EXPECT, last_number_plus(16), STUCK),
    before("arrival not waited for by the token loader", LOAD, 0, SPIN, taken, NOT_ORDERED),
    before("tokens without proxy fence", LOAD, 0, r"fence\.proxy\.async\.global;", gone, ("race",)),
    *WGMMA,
)
COLUMNS_ONLY = (
    after("maxima read before they are written", STORE_MAXIMA, -1, EPILOGUE_ALL, gone, NOT_ORDERED),
    after("Linear2 staging written before it is read", EPILOGUE_ALL, 0, EPILOGUE_GROUP, gone, NOT_ORDERED),
    after("Linear2 staging read before it is written", f"{EPILOGUE_ALL}.*?{EPILOGUE_GROUP}", 0, EPILOGUE_GROUP, gone, NOT_ORDERED),
)
"""With tokens as columns all math warps exchange maxima, and a warpgroup's warps Linear2 tiles."""
ROWS_ONLY = (
    after("maxima read before they are written, few tokens", STORE_MAXIMA, -1, EPILOGUE_ALL, gone, NOT_ORDERED),
    after("Linear2 staging read before other lanes have written it", STMATRIX, -1, WARP_BARRIER, gone, ("race",)),
    before("Linear2 staging written before other lanes have read it", STMATRIX, -1, WARP_BARRIER, gone, ("race",)),
    after("Linear1 tile without proxy fence, few tokens", GROUP_WAIT, 0, FENCE_SHARED, gone, ("race",)),
    after("store_full not signalled, many tokens", LATE_STMATRIX, 0, ARRIVE, gone, STUCK),
    after("empty not signalled, few tokens", GROUP_WAIT, 0, ARRIVE, gone, STUCK),
    before("store_empty not waited for, many tokens", LATE_STMATRIX, 0, WAIT, never, NOT_ORDERED),
    before("full not waited for, first stage of many tokens", GROUP_WAIT, 1, WAIT, never, NOT_ORDERED),
    before("full not waited for, first stage of few tokens", WGMMA_FENCE, 0, WAIT, never, NOT_ORDERED),
)
"""With tokens as rows a tile has code for few tokens, which comes first, and for many."""
SENT = r"st\.global\.v4[^;]*;"
BF16_ROWS = (
    at("part of a row not stored", SENT, 0, gone, NOT_ORDERED),
    at("part of a later row not stored", SENT, -1, gone, NOT_ORDERED),
    before("staging read before other lanes have written it", SENT, 0, WARP_BARRIER, gone, ("race",)),
    before("later staging read before other lanes have written it", SENT, -1, WARP_BARRIER, gone, ("race",)),
    after("staging written before other lanes have read it", SENT, 7, WARP_BARRIER, gone, ("race",)),
)
"""Without scales math warps store the outputs of either linear, by rows, and nobody exchanges maxima."""
PAIRS_ONLY = (
    at("multicast to one CTA", MULTICAST_MASK, 0, lambda match: "mov.u16 m, 1;", (*NOT_ORDERED, *STUCK)),
    before("stage given back to one CTA", REMOTE_ARRIVE, 0, MAP_TO_CTA, to_first_cta, (*NOT_ORDERED, *STUCK)),
    at("stage not given back to any CTA", REMOTE_ARRIVE, 0, gone, STUCK),
    at("empty by the warps of one CTA", r"mbarrier\.init[^;]*, 16;", 0, last_number_plus(-8), (*NOT_ORDERED, *STUCK)),
    at("work_tile_empty by the readers of one CTA", r"mbarrier\.init[^;]*, 704;", 0, last_number_plus(-352), (*NOT_ORDERED, *STUCK)),
    at("ticket not sent", SEND_TICKET, 0, gone, STUCK),
    at("ticket not expected", r"mbarrier\.arrive\.expect_tx\.relaxed\.cluster[^;]*;", 0, gone, STUCK),
    at("barriers used before they are there", CLUSTER_BARRIER, 0, gone, ("simulator error", "race")),
    before("counts not waited for", EPILOGUE_ALL, 0, WAIT, never, ("race", *STUCK)),
)
"""Two CTAs give stages and work_tiles to one another; a CTA whose tiles are another's doing has yet to read the counts itself."""
RING_ONLY = (
    before("rows not waited for", ROW_STORE, 0, SPIN, taken, NOT_ORDERED),
    before("rows waited for without acquire", ROW_STORE, 0, ACQUIRE, swap(".acquire", ".relaxed"), ("race",)),
    before(
        "rows of the block before waited for", ROW_STORE, 0, r"add\.s32 \s*%r\d+, %r\d+, -\d+;", last_number_plus(1), (*NOT_ORDERED, *STUCK)
    ),
    at("rows not freed", FREE, -2, gone, STUCK),
    at("rows freed twice", FREE, -2, twice, (*NOT_ORDERED, *STUCK)),
    at("rows freed without release", FREE, -2, swap(".release", ".relaxed"), ("race",)),
    at("rows freed for this CTA only", FREE, -2, lambda match: smaller_scope(match[0]), ("race",)),
)
"""Of a pool that is a ring: dispatch waits for the rows of the block that is a ring before, and Linear2 frees them."""
