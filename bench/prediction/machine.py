"""The GPU at one clock, costs of tiles, and the token pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibration import Calibration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Server:
    """Serves at `rate` bytes per microsecond; `free` is when all that was asked for so far is served, `served` how many bytes that was."""

    rate: float
    free: float = 0.0
    served: float = 0.0

    def serve(self, times: Floats, amounts: Floats) -> Floats:
        """Completion times of requests, which are in the order of their times; requests of 0 bytes do not queue."""
        service = np.cumsum(amounts) / self.rate
        begun = np.maximum(np.maximum.accumulate(times - service + amounts / self.rate), self.free)
        done = begun + service
        self.free = float(done[-1])
        self.served += float(service[-1]) * self.rate
        return done

    def take(self, time: float, amount: float) -> float:
        self.free = max(self.free, time) + amount / self.rate
        self.served += amount
        return self.free


@dataclass(frozen=True)
class TileTable:
    """Tiles of a launch in schedule order with their costs; arrays with an entry per tile."""

    is_fc2: Ints  # whether it is of Linear2
    k_blocks: Ints  # of the tile
    # [tiles, 4]: number of the first K block of the weights, of a second CTA's weights, of the tokens, of a second CTA's tokens, the K
    # blocks of each in a row; -1 for none
    keys: Ints
    pools: Ints  # [tiles, 2]: blocks of the pool that it needs, or fills if it is of Linear1; the same one twice for a single CTA
    arrivals: Ints  # Linear1 tiles that it completes in each of its pool blocks
    l2_bytes: Floats  # [tiles, 2]: of a K block of weights and of one of tokens
    hbm_bytes: Floats  # the same on a miss in L2
    multiply: Floats  # us of a K block in the tensor core
    epilogue: Floats  # us
    nvlink: Floats  # bytes of results to other ranks
    written: Floats  # bytes to memory
    energy: Floats  # of a K block, in K blocks of 128 x 256 x 128

    def __len__(self) -> int:
        return len(self.k_blocks)


@dataclass(frozen=True)
class PoolTable:
    """Blocks of the token pool: when each is pulled, its bytes, and the Linear1 tiles that fill its intermediate; `weight_keys` K blocks of
    weights come before those of tokens, `key_blocks` of each block, `fc1_keys` of them of Linear1."""

    pulled: Floats
    num_bytes: Floats
    arrivals: Ints
    weight_keys: int
    key_blocks: int
    fc1_keys: int

    def __len__(self) -> int:
        return len(self.pulled)


@dataclass(frozen=True)
class Machine:
    """A GPU at one clock; rates in bytes per microsecond, times in microseconds."""

    gpu: Calibration
    clock: float  # GHz
    sms: int  # of a worker
    stages: int  # of the ring
    handed_out: bool  # dynamic rather than static schedule
    places: int  # of a worker's tile queue: how many tiles ahead of its epilogue it fetches
    overlaps: bool  # epilogue warps with double-buffered accumulators, beside the MMA
    groups: int  # of epilogue warps, which take alternate tiles
    slower: Floats  # HBM time of a byte of weights, and of tokens, relative to long contiguous runs
    spread: Floats  # extra latency of each worker
    kept: float  # share of the weights still in L2 from the previous launch
    pulled_from: float  # bytes that other ranks pull from here, per byte pulled
    issue: float  # time between K blocks of a loader
    window: float  # see engine.py
    release: float = 0.05  # and flag: times until a stage is free again, and until a signal is seen
    flag: float = 0.8

    @property
    def l2(self) -> float:
        """Bandwidth of L2, all workers together."""
        return self.gpu.l2_per_clock * self.clock * 1e3

    @property
    def port(self) -> float:
        """Bandwidth from L2 to one worker, all its SMs."""
        return self.gpu.port_per_clock * (self.clock * 1e3) * self.sms
