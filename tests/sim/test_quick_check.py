"""Compiled checks answer as numpy does, and the race detector finds the same with and without them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from uncompiled import Uncompiled

from megamoe_dsl.sim.access_record import ALIKE, ASYNC_GLOBAL, ASYNC_SHARED, CODE_SHIFT, QUICK, pack
from megamoe_dsl.sim.clock import Actor
from megamoe_dsl.sim.memory import GlobalMemory
from megamoe_dsl.sim.parser import ParsedKernel
from megamoe_dsl.sim.race import Race
from megamoe_dsl.sim.shadow import SHARED, Shadow

AGENTS, BYTES, STEPS = 5, 4096, 400


class Somewhere:
    rank, cluster = 0, None
    kernel = ParsedKernel("k")


def accesses(quick: Any, seed: int) -> tuple[Race, Shadow]:
    """Reads and writes of engines that now and then learn what another knows, and of lanes as codes say."""
    rng = np.random.default_rng(seed)
    race = Race(GlobalMemory(), defaultdict(str), quick=quick)
    shadow = Shadow(BYTES, 4, "smem", "smem", 0, SHARED)
    agents = [race.agent(f"agent {i}", Somewhere()) for i in range(AGENTS)]  # type: ignore[arg-type]
    clocks = [race.clock() for _ in agents]
    for step in range(1, STEPS):
        me = int(rng.integers(AGENTS))
        clocks[me].set(agents[me], step)
        if rng.random() < 0.5:
            clocks[me].join(clocks[int(rng.integers(AGENTS))])
        if rng.random() < 0.3:
            clocks[me].publish_to_async((ASYNC_GLOBAL, ASYNC_SHARED))
        where = int(rng.integers(4, BYTES // 4 - 40))
        index = slice(where, where + 32) if rng.random() < 0.5 else where + rng.permutation(40)[:32]
        actor = Actor(agents[me], clocks[me], step, rng.random() < 0.5, int(rng.integers(ALIKE + 1)))
        if rng.random() < 0.1:
            race.strong(shadow, np.arange(where, where + 2), actor, bool(rng.random() < 0.5))
        elif rng.random() < 0.6:
            race.read(shadow, index, actor)
        else:
            race.write(shadow, index, actor)
    return race, shadow


@pytest.mark.parametrize("seed", range(4))
def test_the_detector_finds_the_same(seed: int) -> None:
    (fast, shadow), (slow, other) = accesses(QUICK, seed), accesses(Uncompiled(), seed)
    assert fast.findings == slow.findings and len(fast.findings) > 3
    assert shadow.write.tolist() == other.write.tolist()
    assert shadow.read.tolist() == other.read.tolist()
    assert shadow.readers is not None and other.readers is not None
    assert shadow.readers.some.tolist() == other.readers.some.tolist()


def test_concurrent_readers_are_kept_alike() -> None:
    rng = np.random.default_rng(0)
    some, row = rng.random(4096) < 0.5, np.zeros(1024, np.int64)
    row[rng.permutation(1024)[:500]] = [
        pack(3, int(when), 0, False) | int(lane) << CODE_SHIFT for when, lane in rng.integers(1, 32, (500, 2))
    ]
    index = np.sort(rng.permutation(4096)[:900])
    new = pack(3, 40, 0, False) | rng.integers(0, 4, 900) << CODE_SHIFT
    results = []
    for quick in (QUICK, Uncompiled()):
        flags, records = some.copy(), row.copy()
        quick.keep(flags, records, 2048, index, new)
        results.append((flags.tolist(), records.tolist(), sorted(quick.pages(index, 10))))
    assert results[0] == results[1]
    assert results[0][1] != row.tolist() and results[0][2] == [0, 1, 2, 3]


@pytest.mark.parametrize("index", [np.array([5, 64]), np.array([-1])])
def test_an_index_beyond_the_records_is_refused(index: np.ndarray) -> None:
    with pytest.raises(IndexError, match="beyond"):
        QUICK.knows(np.zeros(64, np.int64), index, np.zeros((4, 8), np.int32), 0)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="array"):
        QUICK.knows(np.zeros(64, np.int32), slice(0, 4), np.zeros((4, 8), np.int32), 0)  # type: ignore[arg-type]
