"""Chooses a GEMM's configuration on SM90: the measured one of the tuned table (tuned/), else the one with the lowest estimate.

The estimate counts clocks of an SM: waves of tiles, each as long as multiplying or fetching its operands takes, plus its epilogue.  The
constants are those of an H200 at its power cap.
"""

from __future__ import annotations

from typing import Any

from ...hardware.operand_tile import ROW_BYTES
from ...hardware.packed_tile import BLOCK_ROWS, PackedPart
from ...target import Target
from ...tuned import GemmEntry, tuned_table
from .config import GemmConfig, pairs_tiles
from .epilogue import GATE_UP_ROWS
from .problem import CONTIGUOUS, DENSE, MASKED, ROW_BLOCK, GemmProblem
from .tile import GROUP_ROWS, room

FETCH_RATE = 52  # bytes that an SM gets from L2 per clock
MULTIPLY_RATE = 4096  # products of E4M3 that it makes, half as many of BF16: of as many bytes of K
LATENCY = 260  # clocks of a K block, however small, if one at a time is in the tensor core
EPILOGUE, STORE_RATE = 500, 64  # clocks, and elements of D per clock
EXCHANGE_RATE = 16  # sums that a CTA sends to the other one of its cluster per clock
FEW_ROWS = 32  # of a group: as the wgmma's columns
MANY_ROWS = 1024  # from so many of a group on, and up to four times as many as were measured, the best tile is the same
SHORT_TILES = {"NVIDIA H200": (128, 448)}
"""Rows of an expert between which Linear1 in BF16 takes less with tiles of 64 rows than of 128, by GPU; on an H100 it takes more."""

Choice = dict[str, Any]
NARROW: tuple[Choice, ...] = tuple(
    {"block_m": 64, "block_n": block_n, "warpgroups": 1 if block_n <= 64 else 2, "k_in_flight": k_in_flight}
    for block_n, k_in_flight in ((16, 8), (32, 8), (56, 4), (64, 4), (128, 2), (192, 2), (256, 1))
)
WIDE: tuple[Choice, ...] = (
    {"block_m": 128, "block_n": 56, "k_in_flight": 4},
    {"block_m": 128, "block_n": 64, "k_in_flight": 2, "epilogue_buffers": 1},
    {"block_m": 128, "block_n": 96, "k_in_flight": 2},
    {"block_m": 128, "block_n": 128, "k_in_flight": 2},
    {"block_m": 128, "block_n": 192},
    {"block_m": 128, "block_n": 256},
    {"block_m": 192, "block_n": 128},
)


DEEP_K = 4096  # from here on a pair that multiplies in FP8 gains more than the longer epilogue of its tiles takes
COLUMNS = (256, 192, 128)  # of a tile where K are rows: those that waste the fewest, of equals the most


def choose(problem: GemmProblem, target: Target, rows: int, *, batch_invariant: bool = False, **fields: Any) -> GemmConfig:
    """The configuration for `rows` rows of A; `fields` override chosen values.  `batch_invariant`: no tile splits K, so a row of D does not
    depend on the number of rows.  Raises `ConfigError`."""
    problem.check_rows(rows)
    return GemmConfig(problem, num_sms=target.num_sms, **{**choose_fields(problem, target, rows, batch_invariant), **fields})


def choose_fields(problem: GemmProblem, target: Target, rows: int, whole_k: bool = False) -> Choice:
    """Fields of a configuration for `rows` rows of A, spread evenly over the groups; `whole_k`: no tile splits K.

    The tuned table is not used for rows of experts: it was measured with CTA pairs and with rows that TMA loads."""
    expected = max(rows, 1) / problem.num_groups
    if problem.gradient and problem.formats.scaled:
        tile = {"block_n": 256, "cluster": target.pair} if problem.k >= DEEP_K else {"block_n": 128, "k_in_flight": 2}
        return {"block_m": 128, **tile, "dynamic_schedule": True}
    if problem.transposed_b:
        own: Choice = {"group_m": 4} if problem.gradient else {"half_tiles": True}
        return {"block_m": 128, "block_n": 256 if problem.n > 128 else 128, "cluster": target.pair, "dynamic_schedule": True, **own}
    if problem.sums_rows:
        # Scales of columns leave a thread no registers for more.
        columns = COLUMNS if problem.gathers else COLUMNS[-1:]
        block_n = min(columns, key=lambda one: -(-problem.tile_columns // one) * one)
        pairs = target.num_sms % 2 == 0 and pairs_tiles(problem, 128, block_n)
        buffers = 1 if problem.gathers and not problem.accumulate else 2
        return {"block_m": 128, "block_n": block_n, "cluster": 2 if pairs else 1, "epilogue_buffers": buffers, "dynamic_schedule": True}
    if problem.gate_up:
        tile = {"block_n": GATE_UP_ROWS, "dynamic_schedule": True}
        if room(expected) <= GROUP_ROWS:
            return {**tile, "block_m": GROUP_ROWS, "warpgroups": 1, "burst": burst_of(problem)}
        # Pairs of CTAs fetch weights together: with many rows what L2 delivers is the limit (docs/lab/one_gpu.md).
        least, most = SHORT_TILES.get(str(target.gpu), (0, 0))
        short = not problem.formats.scaled and least < expected <= most
        return {**tile, "cluster": target.pair, "block_m": GROUP_ROWS * (1 if short else 2), "warpgroups": 1 if short else 2}
    measured = target.gpu is not None and not problem.of_experts
    entry = find_entry(problem, target.num_sms, expected, str(target.gpu)) if measured else None
    if entry is not None and not (whole_k and entry.choice.get("split_k")):
        return dict(entry.choice)
    if problem.has_groups and expected <= FEW_ROWS and not problem.decodes:
        block_m = next(m for m in (8, 16, 32) if expected <= m)
        few: Choice = {"block_m": block_m, "block_n": 128, "swap_ab": True, "k_in_flight": 2}
        return few if problem.formats.scaled else unscaled(few)
    if problem.decodes:
        fitting = [one for one in decoding_tiles(problem, expected) if not (whole_k and one.get("split_k"))]
    else:
        tiles = (*NARROW, *WIDE) if problem.formats.scaled else tuple(unscaled(one) for one in (*NARROW, *WIDE))
        fitting = [one for one in tiles if not problem.has_groups or one["block_m"] <= ROW_BLOCK]
    counts = [max(1, round(expected))] * problem.num_groups
    best = min(fitting, key=lambda one: cost(problem, counts, one, target.num_sms))
    # How many rows each group has is known on the device alone.  Tiles of 192 rows are the fastest where every group has 129 to 192 or 257
    # to 384, and up to 1.5 times as slow as the others where groups are unequal (docs/lab/gemms.md).
    return {**best, "dynamic_schedule": problem.has_groups}


def unscaled(choice: Choice) -> Choice:
    """The same tile for unscaled operands, whose sums stay in the tensor core: two K blocks are always in flight."""
    return {name: value for name, value in choice.items() if name != "k_in_flight"}


def burst_of(problem: GemmProblem) -> int:
    """K blocks of B to fetch at once where tiles wait for memory; more are no faster (docs/lab/one_gpu.md)."""
    return 2 if problem.k_blocks % 2 == 0 else 1


def find_entry(problem: GemmProblem, num_sms: int, expected: float, gpu: str) -> GemmEntry | None:
    """The measured point for `expected` rows of a group: one with as many or up to twice as many rows, or both with `MANY_ROWS` or more."""
    found = tuned_table(gpu, GemmEntry).by_share.get(GemmEntry.share_of(problem, num_sms=num_sms), [])
    above = [one for one in found if expected <= one.expected <= 2 * expected]
    many = [one for one in found if min(one.expected, expected) >= MANY_ROWS and expected <= 4 * one.expected]
    return min(above, key=lambda one: one.expected, default=max(many, key=lambda one: one.expected, default=None))


def cost(problem: GemmProblem, counts: list[int], choice: Choice, num_sms: int) -> float:
    """Estimated clocks for groups with these `counts` of rows; `choice` has fields of a configuration."""
    block_m, block_n, split = choice["block_m"], choice["block_n"], bool(choice.get("split_k"))
    tiles = (1 + split) * sum(-(-count // block_m) for count in counts) * -(-problem.n // block_n)
    multiply, epilogue = block_m * block_n * ROW_BYTES / MULTIPLY_RATE, EPILOGUE + block_m * block_n / STORE_RATE
    if problem.decodes:
        fetch, exchange = (block_m * ROW_BYTES + PackedPart(block_n).num_bytes) / DECODING_FETCH_RATE, EXCHANGE
        per_block = max(fetch, multiply, DECODING_LATENCY, issue_clocks(choice) if choice.get("swap_ab") else DECODE * block_n)
    else:
        fetch, exchange = (block_m + block_n) * ROW_BYTES / FETCH_RATE, block_m * block_n / 2 / EXCHANGE_RATE
        per_block = max(multiply, fetch, LATENCY / choice.get("k_in_flight", 1))
    return -(-tiles // num_sms) * (-(-problem.k_blocks // (1 + split)) * per_block + exchange * split + epilogue)


DECODING_FETCH_RATE = 40  # bytes that an SM gets from memory and L2 per clock
DECODING_LATENCY = 500  # clocks of a K block: decoding a block of 64 rows, its wgmmas and promotion, which wait for one another
ISSUE_RATE = 0.55  # instructions of a scheduler per clock while its warps decode for themselves
DECODE = 6.2  # clocks of a row of B by 128 of K where warps of their own decode it
EXCHANGE = 400  # more, where halves of K are added
MOST_COLUMNS = 64

SPLIT: Choice = {"cluster": 2, "split_k": True}
TILES: tuple[Choice, ...] = tuple(
    {"swap_ab": True, "block_n": block_n, "warpgroups": warpgroups, **split}
    for block_n, warpgroups in ((64, 1), (128, 2), (256, 2))
    for split in ({}, SPLIT)
)
DECODED: tuple[Choice, ...] = ({"block_m": 128, "block_n": 256, "epilogue_buffers": 1}, {"block_m": 256, "block_n": 128})
"""Tiles whose B is decoded by warps of its own, for more rows than columns hold."""


def decoding_tiles(problem: GemmProblem, expected: float) -> list[Choice]:
    """Candidate tiles with decoded weights for `expected` rows of each group."""
    split, allowed = expected <= MOST_COLUMNS and problem.k_blocks > 1, range(8, MOST_COLUMNS + 1, 8)
    whole = [m for m in allowed if problem.kind != CONTIGUOUS or ROW_BLOCK % m == 0]
    block_m = next((m for m in whole if expected <= m), whole[-1])
    swapped = [{"block_m": block_m, **one} for one in TILES if split or not one.get("split_k")]
    if expected <= MOST_COLUMNS:
        return swapped
    most = 256 if problem.kind in (DENSE, MASKED) else ROW_BLOCK
    decoded = [one for one in DECODED if one["block_m"] <= most]
    return [*swapped, *({**one, "half_tiles": problem.has_groups and one["block_m"] == ROW_BLOCK} for one in decoded)]


def issue_clocks(choice: Choice) -> float:
    """Clocks in which a warp scheduler issues a K block of math warps that decode; `megamoe inspect` has counted the instructions."""
    block_m, warps = choice["block_m"], choice["warpgroups"]
    blocks = choice["block_n"] // BLOCK_ROWS // warps
    return float(warps * (40 + 0.7 * block_m + blocks * (75 + 0.45 * block_m)) / ISSUE_RATE)
