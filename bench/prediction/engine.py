"""One launch of one rank, K block by K block, from when its tokens' counts are known until the last tile is stored.

A worker (a CTA on SM90, a pair of them on SM100) has a weight loader and a token loader that fill a ring of stages, a tensor core that
empties it, and epilogue warps; all workers share L2, HBM and NVLink (machine.py).  An operand of a K block that was in L2 a short while
ago comes from there, any other from HBM: bytes into L2 are counted, and what was touched less than `l2_kept` of them ago still is there.
Rows of the pool that no token fills are fetched with the others of their block, and nothing of the launch has brought them into L2.  A
worker has a tile `places` before its epilogue warps begin with it, so that tiles wait behind a slow one.

Times follow from one another by maxima and sums, so nothing waits in a queue of events: in rounds, all workers whose next step lies within
`window` after the earliest one take it together, as arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .machine import Floats, Ints, Machine, PoolTable, Server, TileTable


@dataclass(frozen=True)
class Run:
    """A simulated launch: its `end`; for each tile its worker and `stamps` (core free, multiply begins, ends, epilogue begins, ends)."""

    end: float
    workers: int  # tensor cores, or pairs of them
    is_fc2: Ints
    worker: Ints
    stamps: Floats
    hbm_bytes: float  # and l2_bytes, nvlink_bytes: read, or sent
    l2_bytes: float
    nvlink_bytes: float
    written: float  # to memory
    multiplying: float  # us of all tensor cores at work
    energy: float  # K blocks of 128 x 256 x 128


NEVER = np.inf
STAMPS = 5
ACCUMULATORS = 2
HISTORY = 16  # tiles of a worker that are remembered: the loaders are at most a ring ahead of the tensor core
NVLINK_SLACK = 3.0  # Microseconds of results that may be on their way over NVLink before an epilogue waits.


class Engine:
    """State of a launch; `start` is the time in us at which token counts are known."""

    def __init__(self, tiles: TileTable, pool: PoolTable, machine: Machine, start: float) -> None:
        self.tiles, self.pool, self.machine = tiles, pool, machine
        workers, stages = len(machine.spread), machine.stages
        self.hbm, self.l2, self.nvlink = (Server(rate, start) for rate in (machine.gpu.hbm, machine.l2, machine.gpu.nvlink))
        self.into_l2 = 0.0
        # --- operands: when their bytes were last touched, counted in bytes into L2, when they came, and what was not written meanwhile
        keys = pool.weight_keys + len(pool) * pool.key_blocks
        self.touched = np.full(keys, -NEVER)
        self.came = np.zeros(keys)
        self.seen = np.zeros(keys, bool)
        self.claimed = np.zeros(keys, np.int64)
        self.stale = np.zeros(keys)
        self.stale[pool.weight_keys :].reshape(len(pool), -1)[:, : pool.fc1_keys] = self._stale_bytes()[:, None]
        # --- tiles
        self.next_number = 0
        self.history = np.zeros((workers, HISTORY), np.int64)
        self.fetched = np.zeros(workers, np.int64)
        # --- [weights, tokens, tensor core]: tile of the worker, K block of the tile, K blocks so far; time of the last step
        self.position = np.zeros((3, workers), np.int64)
        self.k = np.zeros((3, workers), np.int64)
        self.count = np.zeros((3, workers), np.int64)
        self.last = np.full((3, workers), start)
        self.arrived = np.zeros((2, workers, stages))
        self.free = np.full((workers, stages), start)
        self.port_free = np.full(workers, start)
        # --- epilogues
        self.finished = np.zeros(workers, np.int64)
        self.multiplied = np.full((workers, ACCUMULATORS), NEVER)
        self.stored = np.full((workers, ACCUMULATORS), start)
        # --- the pool
        self.by_time = np.argsort(pool.pulled, kind="stable")
        self.pull_times = np.append(pool.pulled[self.by_time], NEVER)
        self.pulls = 0
        self.missing = pool.arrivals.copy()
        self.filled = np.zeros(len(pool))
        self.ready = np.stack([pool.pulled + machine.flag, np.full(len(pool), NEVER)])  # of Linear1, of Linear2
        # --- what comes out
        self.end = start
        self.worker = np.full(len(tiles), -1)
        self.stamps = np.zeros((len(tiles), STAMPS))
        self.written = self.multiplying = self.energy = 0.0
        self.every = np.arange(workers)

    def run(self) -> Run:
        """Simulates the whole launch, tile by tile in the order of the schedule."""
        for _ in range(self.machine.places + self.machine.groups):
            self._fetch(self.every)
        while True:
            tile = self.history[self.every, self.position[1] % HISTORY]
            ready = self.ready[self.tiles.is_fc2[tile, None], self.tiles.pools[tile]].max(axis=1)
            weights = np.where(self.position[0] < self.fetched, self._slot(0), NEVER)
            tokens = np.where(self.position[1] < self.fetched, np.maximum(self._slot(1), ready), NEVER)
            stores = self.multiplied[self.every, self.finished % ACCUMULATORS]
            earliest = min(weights.min(), tokens.min(), stores.min())
            if earliest == NEVER:
                if not self._multiply():
                    break
                continue
            horizon = min(earliest, self.pull_times[self.pulls]) + self.machine.window
            self._pull(horizon)
            self._store(np.flatnonzero(stores <= horizon), stores)
            self._load(np.flatnonzero(weights <= horizon), weights, np.flatnonzero(tokens <= horizon), tokens)
            self._multiply()
        assert self.stamps[:, -1].all(), "not all tiles ran"
        moved = self.hbm.served - self.written, self.l2.served, self.nvlink.served, self.written
        tiles = self.tiles.is_fc2, self.worker, self.stamps
        return Run(max(self.end, self.nvlink.free), len(self.every), *tiles, *moved, self.multiplying, self.energy)

    def _stale_bytes(self) -> Floats:
        """By pool block, bytes of a Linear1 K block that are fetched for rows without a token."""
        tiles, pool = self.tiles, self.pool
        fetched, fc1 = np.zeros(len(pool)), tiles.is_fc2 == 0
        for blocks in tiles.pools[fc1].T:
            fetched[blocks] = tiles.hbm_bytes[fc1, 1]
        return np.maximum(fetched - pool.num_bytes / pool.fc1_keys, 0.0)

    # --- when the next step of each worker can be
    def _slot(self, role: int) -> Floats:
        """When the stage that a loader fills next is free; NEVER while that is unknown."""
        stages = self.machine.stages
        free = np.maximum(self.free[self.every, self.count[role] % stages], self.last[role])
        return np.where(self.count[role] - self.count[2] < stages, free, NEVER)

    # --- the steps
    def _pull(self, horizon: float) -> None:
        """Receives pool blocks from other ranks, which pull as much from here meanwhile."""
        pool, first = self.pool, self.pulls
        self.pulls = int(np.searchsorted(self.pull_times, horizon, side="right"))
        if self.pulls == first:
            return
        blocks = self.by_time[first : self.pulls]
        time, amount = self.pull_times[first], float(pool.num_bytes[blocks].sum())
        self._into_memory(time, amount)
        self.nvlink.take(time, amount * self.machine.pulled_from)
        self._touch_pool(blocks, 0, pool.fc1_keys)

    def _touch_pool(self, blocks: Ints, first: int, past: int) -> None:
        keys = self.pool.weight_keys + blocks[:, None] * self.pool.key_blocks + np.arange(first, past)
        self.touched[keys], self.seen[keys] = self.into_l2, True

    def _into_memory(self, time: float, amount: float) -> None:
        self.into_l2 += amount
        self.written += amount
        self.hbm.take(time, amount)
        self.l2.free = max(self.l2.free, time) + self.machine.gpu.l2_fill * amount / self.machine.l2

    def _store(self, who: Ints, due: Floats) -> None:
        if not len(who):
            return
        who = who[np.argsort(due[who], kind="stable")]
        tiles, machine, turn = self.tiles, self.machine, self.finished[who]
        tile = self.history[who, turn % HISTORY]
        begin = np.maximum(due[who], self.stored[who, (turn - machine.groups) % ACCUMULATORS])
        end = begin + tiles.epilogue[tile]
        sent = tiles.nvlink[tile]
        if sent.any():
            end = np.where(sent > 0, np.maximum(end, self.nvlink.serve(begin, sent) - NVLINK_SLACK), end)
        self._into_memory(float(begin[0]), float(tiles.written[tile].sum()))
        self.stored[who, turn % ACCUMULATORS] = end
        self.multiplied[who, turn % ACCUMULATORS] = NEVER
        self.finished[who] += 1
        self.stamps[tile, 3], self.stamps[tile, 4] = begin, end
        self.end = max(self.end, float(end.max()))
        self._fetch(who[np.argsort(end, kind="stable")])
        fc1 = tiles.is_fc2[tile] == 0
        if fc1.any():
            self._fill_pool(tile[fc1], end[fc1])

    def _fill_pool(self, tile: Ints, end: Floats) -> None:
        pools, arrivals, ready = self.tiles.pools[tile], self.tiles.arrivals[tile], end + self.machine.flag
        twice = pools[:, 0] != pools[:, 1]
        for blocks, count, when in ((pools[:, 0], arrivals, ready), (pools[twice, 1], arrivals[twice], ready[twice])):
            np.subtract.at(self.missing, blocks, count)
            np.maximum.at(self.filled, blocks, when)
        blocks = np.unique(pools)
        full = blocks[self.missing[blocks] <= 0]
        self.ready[1, full] = self.filled[full]
        self._touch_pool(full, self.pool.fc1_keys, self.pool.key_blocks)

    def _fetch(self, who: Ints) -> None:
        """Assigns the next tiles to workers, in the order in which they ask."""
        if self.machine.handed_out:
            number = np.where(self.fetched[who] == 0, who, len(self.every) + self.next_number + np.cumsum(self.fetched[who] > 0) - 1)
            self.next_number += int((self.fetched[who] > 0).sum())
        else:
            number = who + self.fetched[who] * len(self.every)
        there = number < len(self.tiles)
        who, number = who[there], number[there]
        self.history[who, self.fetched[who] % HISTORY] = number
        self.worker[number] = who
        self.fetched[who] += 1

    def _load(self, weights: Ints, weights_due: Floats, tokens: Ints, tokens_due: Floats) -> None:
        """Loads a K block of weights for some workers, and one of tokens for others."""
        who = np.concatenate([weights, tokens])
        if not len(who):
            return
        role = np.repeat([0, 1], [len(weights), len(tokens)])
        due = np.concatenate([weights_due[weights], tokens_due[tokens]])
        order = np.argsort(due, kind="stable")
        who, role, due = who[order], role[order], due[order]
        tile = self.history[who, self.position[role, who] % HISTORY]
        keys = self.tiles.keys[tile[:, None], 2 * role[:, None] + np.arange(2)]
        asked, operand = np.nonzero(keys >= 0)
        arrival = self._from_memory(keys[asked, operand] + self.k[role, who][asked], due[asked], who[asked], tile[asked], role[asked])
        latest = np.zeros(len(who))
        np.maximum.at(latest, asked, arrival)
        stage = self.count[role, who] % self.machine.stages
        self.arrived[role, who, stage] = latest + self.machine.spread[who]
        self.last[role, who] = due + self.machine.issue
        self.count[role, who] += 1
        self.k[role, who] += 1
        past = self.k[role, who] == self.tiles.k_blocks[tile]
        self.position[role[past], who[past]] += 1
        self.k[role[past], who[past]] = 0

    def _from_memory(self, keys: Ints, times: Floats, who: Ints, tile: Ints, role: Ints) -> Floats:
        """Arrival times of operands requested at `times`."""
        machine, amount, whole = self.machine, self.tiles.l2_bytes[tile, role], self.tiles.hbm_bytes[tile, role]
        self.claimed[keys[::-1]] = np.arange(len(keys))[::-1]
        first = self.claimed[keys] == np.arange(len(keys))  # of simultaneous requests for one key
        miss = first & (self.into_l2 - self.touched[keys] >= machine.gpu.l2_kept)
        cold = miss & ~self.seen[keys]
        stale = np.where(first, self.stale[keys], 0.0)
        self.stale[keys] = 0.0
        read = np.where(miss, whole * np.where(cold, 1 - machine.kept, 1.0), stale)
        in_l2 = self.l2.serve(times, amount + machine.gpu.l2_fill * read)
        self.l2.served -= machine.gpu.l2_fill * float(read.sum())
        port = np.maximum(self.port_free[who], times) + amount / machine.port
        np.maximum.at(self.port_free, who, port)
        in_l2 = np.maximum(in_l2, port)
        missing = read > 0
        if missing.any():
            cost = read * machine.slower[role]
            from_hbm = np.maximum(self.hbm.serve(times[missing], cost[missing]), in_l2[missing]) + machine.gpu.hbm_latency
            self.hbm.served -= float((cost - read).sum())
            self.came[keys[missing]] = from_hbm
            self.into_l2 += float(np.where(miss, whole, stale).sum())
            self.seen[keys] = True
        self.touched[keys] = self.into_l2
        return np.maximum(in_l2 + machine.gpu.hbm_latency * machine.gpu.l2_latency, self.came[keys])

    def _multiply(self) -> bool:
        """Multiplies a K block on every worker whose operands have been requested; returns whether there was any."""
        machine, at = self.machine, self.count[2]
        there = (at < self.count[0]) & (at < self.count[1])
        begins = self.k[2] == 0
        behind = self.position[2] - self.finished
        who = np.flatnonzero(there & (~begins | (behind < (ACCUMULATORS if machine.overlaps else 1))))
        if not len(who):
            return False
        at, begins, position = at[who], begins[who], self.position[2, who]
        tile = self.history[who, position % HISTORY]
        stage = at % machine.stages
        ready = self.arrived[:, who, stage].max(axis=0)
        idle = self.last[2, who]
        since = np.where(
            begins, np.maximum(self.stored[who, (position - (ACCUMULATORS if machine.overlaps else 1)) % ACCUMULATORS], idle), idle
        )
        begin = np.maximum(ready, since + np.where(begins, machine.gpu.tile, 0.0))
        took = self.tiles.multiply[tile]
        end = begin + took
        self.multiplying += float(took.sum())
        self.energy += float(self.tiles.energy[tile].sum())
        self.stamps[tile[begins], 0], self.stamps[tile[begins], 1] = since[begins], begin[begins]
        self.last[2, who] = end
        self.free[who, stage] = end + machine.release
        self.count[2, who] += 1
        self.k[2, who] += 1
        past = self.k[2, who] == self.tiles.k_blocks[tile]
        ended, tile, end = who[past], tile[past], end[past]
        self.stamps[tile, 2] = end
        self.multiplied[ended, self.position[2, ended] % ACCUMULATORS] = end
        self.position[2, ended] += 1
        self.k[2, ended] = 0
        return True
