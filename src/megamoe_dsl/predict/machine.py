"""What a launch runs on, at one clock."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Floats


@dataclass(frozen=True)
class Machine:
    """What a launch runs on, at one clock; rates in bytes per microsecond, times in microseconds.

    stages          of the ring
    handed_out      whether tiles are handed out at run time, rather than every so-many-th to a worker
    places          of a worker's tile queue: it fetches a tile when its epilogue warps begin with the one that many before
    overlaps        whether epilogues have accumulators of their own, two in turn, rather than being done by the warps that multiply
    groups          of epilogue warps, which take alternate tiles
    hbm, l2, nvlink, port    bandwidths; `port` is one worker's
    slower          HBM time of a byte of weights, and of tokens, beside one of a long run of bytes
    hbm_latency, l2_latency  of a load
    spread          further latency of each worker
    l2_kept         bytes that may come into L2 before what was touched has left it
    fill            L2 bandwidth that filling takes, beside reading
    kept            share of the weights that is still in L2 from the launch before
    pulled_from     bytes that other ranks pull from here, of those that are pulled
    issue, release, flag, tile    times: between K blocks of a loader, of a stage given back, of a signal, between tiles
    window          see engine.py
    """

    stages: int
    handed_out: bool
    places: int
    overlaps: bool
    groups: int
    hbm: float
    l2: float
    nvlink: float
    port: float
    slower: Floats
    hbm_latency: float
    l2_latency: float
    spread: Floats
    l2_kept: float
    fill: float
    kept: float
    pulled_from: float
    issue: float
    release: float
    flag: float
    tile: float
    window: float
