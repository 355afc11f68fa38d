"""What came out of a simulated launch."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Floats, Ints


@dataclass(frozen=True)
class Run:
    """What came out: `end`, and of each tile whether it is of Linear2, its worker, and when its tensor core was free, began and
    ended, and when its epilogue began and ended.

    workers                              tensor cores, or pairs of them
    hbm_bytes, l2_bytes, nvlink_bytes    read, or sent
    written                              to memory
    multiplying, waiting, first_wait     us of all tensor cores: at work, waiting within a tile, and before one
    epilogues                            us of all epilogues
    energy                               K blocks of 128 x 256 x 128
    """

    end: float
    workers: int
    is_fc2: Ints
    worker: Ints
    stamps: Floats
    hbm_bytes: float
    l2_bytes: float
    nvlink_bytes: float
    written: float
    multiplying: float
    waiting: float
    first_wait: float
    epilogues: float
    energy: float
