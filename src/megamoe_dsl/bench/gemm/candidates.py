"""Configurations that may be the fastest at a point."""

from __future__ import annotations

from typing import Any

from ...config_error import ConfigError
from ...hardware.operand_tile import BLOCK_K
from ...kernels.gemm.config import NUM_SMS, GemmConfig
from ...kernels.gemm.problem import CONTIGUOUS
from .point import GemmPoint

WIDE = (256, 192, 160, 128, 112, 96)
NARROW = (16, 24, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
MOST = 8
FETCH_RATE = 52  # bytes that an SM gets from L2 per clock
MULTIPLY_RATE = 4096  # products of E4M3 that it makes
LATENCY = 260  # clocks of a K block, however small, if one at a time is in the tensor core
EPILOGUE, STORE_RATE = 500, 64  # clocks, and elements of D per clock


def tiles_of(point: GemmPoint, block_m: int, block_n: int) -> int:
    """Tiles of a point, each group's own."""
    return sum(-(-count // block_m) for count in point.counts) * -(-point.problem.n // block_n)


def cost(point: GemmPoint, config: GemmConfig) -> float:
    """A rough time in clocks of an SM: waves of tiles, each as long as multiplying or fetching its operands takes, and its epilogue."""
    waves = -(-tiles_of(point, config.block_m, config.block_n) // config.num_sms)
    saved = min(config.block_m, config.block_n) / 2 if config.cluster == 2 else 0
    fetch = (config.block_m + config.block_n - saved) * BLOCK_K / FETCH_RATE
    multiply = config.block_m * config.block_n * BLOCK_K / MULTIPLY_RATE
    epilogue = EPILOGUE + config.block_m * config.block_n / STORE_RATE
    return waves * (config.problem.k_blocks * max(multiply, fetch, LATENCY / config.ahead) + epilogue)


def candidates(point: GemmPoint, most: int = MOST) -> list[GemmConfig]:
    """The `most` that look fastest, by `cost`."""
    fields: list[dict[str, Any]] = []
    largest = max(point.counts)
    for block_n in NARROW if largest <= 512 else WIDE:
        if largest <= 64 or point.problem.has_groups:
            fields += [{"block_m": 64, "block_n": block_n, "warpgroups": w} for w in (1, 2)]
        if largest > 64:
            fields += [{"block_m": 128, "block_n": block_n, "cluster": c} for c in (1, 2)]
        if largest > 128 and point.problem.kind != CONTIGUOUS:
            fields += [{"block_m": 192, "block_n": block_n, "cluster": c} for c in (1, 2)]
    if largest <= 64:
        rows = next(m for m in range(8, 65, 8) if m >= largest)
        fields += [{"block_m": rows, "block_n": n, "swap_ab": True} for n in (64, 128, 256)]
    found = []
    for one in fields:
        try:
            found.append(GemmConfig(point.problem, num_sms=NUM_SMS, **one))
        except ConfigError:
            continue
    return sorted(dict.fromkeys(found), key=lambda config: cost(point, config))[:most]
