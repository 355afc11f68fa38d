"""The engine of the model on launches whose time is known: bytes over a bandwidth, clocks of a tensor core, waits of Linear2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prediction.calibration import calibration_of
from prediction.engine import Engine, Run
from prediction.machine import Machine, PoolTable, Server, TileTable

START, K_BLOCKS = 10.0, 32
BYTES, MULTIPLY, EPILOGUE = 1000.0, 1.0, 2.0
FAST = 1e12


GPU = replace(
    calibration_of("NVIDIA H200"),
    **{"hbm": FAST, "nvlink": FAST, "l2_per_clock": FAST, "port_per_clock": FAST, "l2_kept": FAST},
    **{"hbm_latency": 0.0, "l2_fill": 0.0, "tile": 0.0},
)
"""At a clock of one per microsecond."""


def machine(workers: int = 1, **changes: object) -> Machine:
    """One on which only what is changed takes time."""
    named = {{"l2": "l2_per_clock", "port": "port_per_clock"}.get(name, name): value for name, value in changes.items()}
    of_gpu = {name: named.pop(name) for name in list(named) if hasattr(GPU, name)}
    usual: dict[str, Any] = {
        **{"stages": 4, "handed_out": True, "places": 1, "overlaps": False, "groups": 1, "slower": np.ones(2), "spread": np.zeros(workers)},
        **{"kept": 0.0, "pulled_from": 0.0, "issue": 0.0, "window": 0.1, "release": 0.0, "flag": 0.0},
    }
    return Machine(replace(GPU, **of_gpu), clock=1e-3, sms=1, **{**usual, **named})  # type: ignore[arg-type]


def launch(
    tiles: int,
    one: Machine,
    is_fc2: object = 0,
    shared: bool = False,
    multiply: object = MULTIPLY,
    pulled: float = 0.0,
    pools: Sequence[tuple[int, int]] = ((0, 0),),
    **costs: float,
) -> Run:
    """So many tiles of one block of the pool, or of the blocks `pools`, each with weights of its own unless they are shared; `pulled` bytes
    fill a block."""
    phase = np.broadcast_to(np.asarray(is_fc2, np.int64), tiles)
    each = np.zeros(tiles) if shared else np.arange(tiles) * K_BLOCKS
    none, first, blocks = np.full(tiles, -1), tiles * K_BLOCKS, np.resize(np.array(pools), (tiles, 2))
    keys = first + (2 * blocks + phase[:, None]) * K_BLOCKS
    second = np.where(blocks[:, 1] == blocks[:, 0], -1, keys[:, 1])
    fc1 = [sum(block in pair for pair, of_fc2 in zip(blocks, phase, strict=True) if not of_fc2) for block in range(blocks.max() + 1)]

    def every(name: str, usual: float) -> np.ndarray:
        return np.full(tiles, costs.get(name, usual))

    table = TileTable(
        is_fc2=phase,
        k_blocks=np.full(tiles, K_BLOCKS),
        keys=np.stack([each.astype(np.int64), none, keys[:, 0], second], 1),
        pools=blocks,
        arrivals=np.ones(tiles, np.int64),
        l2_bytes=np.stack([every("weights", BYTES), every("tokens", 0.0)], 1),
        hbm_bytes=np.stack([every("weights", BYTES), every("tokens", 0.0)], 1),
        multiply=np.broadcast_to(np.asarray(multiply, float), tiles),
        epilogue=every("epilogue", EPILOGUE),
        nvlink=every("nvlink", 0.0),
        written=every("written", 0.0),
        energy=every("energy", 1.0),
    )
    pool = PoolTable(np.full(len(fc1), START), np.full(len(fc1), pulled), np.array(fc1), first, 2 * K_BLOCKS, K_BLOCKS)
    return Engine(table, pool, one, START).run()


def test_tensor_cores_are_all_that_takes_time() -> None:
    run = launch(6, machine(workers=3))
    assert run.end == pytest.approx(START + 2 * (K_BLOCKS * MULTIPLY + EPILOGUE))
    assert run.multiplying == pytest.approx(6 * K_BLOCKS * MULTIPLY) and run.energy == 6 * K_BLOCKS


def test_epilogues_of_other_warps_hide_behind_the_next_tile() -> None:
    run = launch(6, machine(workers=3, overlaps=True))
    assert run.end == pytest.approx(START + 2 * K_BLOCKS * MULTIPLY + EPILOGUE)


def test_two_groups_of_epilogue_warps_store_at_once() -> None:
    """A tile's sums wait for the accumulators of the tile before the last."""
    alone, together = (launch(6, machine(overlaps=True, groups=groups), epilogue=100.0).end - START for groups in (1, 2))
    assert alone == pytest.approx(32 + 6 * 100) and together == pytest.approx(32 + 3 * 100 + 2 * 32 + 32)


@pytest.mark.parametrize(("resource", "workers"), [("hbm", 8), ("l2", 8)])
def test_a_bandwidth_is_all_that_takes_time(resource: str, workers: int) -> None:
    rate = 2000.0
    run = launch(32, machine(workers, **{resource: rate}), multiply=1e-3, epilogue=0.0)
    assert run.end == pytest.approx(START + 32 * K_BLOCKS * BYTES / rate, rel=0.01)
    assert run.hbm_bytes == pytest.approx(32 * K_BLOCKS * BYTES) and run.l2_bytes == pytest.approx(32 * K_BLOCKS * BYTES)


def test_a_ring_hides_latency_as_far_as_it_is_deep() -> None:
    latency, tiles = 8.0, 4
    ends = [launch(tiles, machine(stages=stages, hbm_latency=latency), epilogue=0.0).end - START for stages in (2, 4, 16)]
    assert ends[0] == pytest.approx(tiles * K_BLOCKS / 2 * (latency + MULTIPLY), rel=0.05)
    assert ends[1] == pytest.approx(tiles * K_BLOCKS / 4 * (latency + MULTIPLY), rel=0.05)
    assert ends[2] == pytest.approx(tiles * K_BLOCKS * MULTIPLY + latency)


def test_weights_that_are_shared_come_from_hbm_once() -> None:
    assert launch(8, machine(workers=8), shared=True).hbm_bytes == pytest.approx(K_BLOCKS * BYTES)
    assert launch(8, machine(workers=1, l2_kept=BYTES), shared=True).hbm_bytes == pytest.approx(8 * K_BLOCKS * BYTES)


def test_what_the_launch_before_has_left_is_not_read_the_first_time() -> None:
    """A part of the weights; later they come whole, and so do tokens, which this launch has pulled: one K block of them still is in L2."""
    found = launch(8, machine(l2_kept=BYTES, kept=0.25), shared=True)
    assert found.hbm_bytes == pytest.approx((0.75 + 7) * K_BLOCKS * BYTES)
    found = launch(8, machine(l2_kept=BYTES, kept=0.25), shared=True, tokens=100.0, pulled=100.0 * K_BLOCKS)
    assert found.hbm_bytes == pytest.approx((0.75 + 7) * K_BLOCKS * BYTES + (8 * K_BLOCKS - 1) * 100)


def test_stamps_of_tiles() -> None:
    """Core free, multiply began and ended, epilogue began and ended: of tiles one after another, and with an epilogue beside the next."""
    alone, beside = (launch(2, machine(overlaps=overlaps, tile=0.5)).stamps.tolist() for overlaps in (False, True))
    assert alone == [[10, 10.5, 42.5, 42.5, 44.5], [44.5, 45, 77, 77, 79]]
    assert beside == [[10, 10.5, 42.5, 42.5, 44.5], [42.5, 43, 75, 75, 77]]


def test_linear2_waits_for_all_of_linear1() -> None:
    run = launch(4, machine(workers=4, flag=0.5), is_fc2=[0, 0, 0, 1], multiply=[1.0, 1.0, 3.0, 1.0])
    assert run.stamps[3, 1] == pytest.approx(START + 3 * K_BLOCKS + EPILOGUE + 2 * 0.5)  # a signal of the pull, and one of Linear1


def test_tiles_handed_out_go_to_who_is_free() -> None:
    """With a place in its queue a worker has its next tile as soon as it begins with one: that waits behind a slow one."""
    slow = [10.0, *[1.0] * 5]
    dynamic_schedule = launch(6, machine(workers=2, handed_out=False), multiply=slow, epilogue=0.0)
    free, one_ahead = (launch(6, machine(workers=2, places=places), multiply=slow, epilogue=0.0) for places in (0, 1))
    assert dynamic_schedule.worker.tolist() == [0, 1, 0, 1, 0, 1] and dynamic_schedule.end == pytest.approx(START + 12 * K_BLOCKS)
    assert free.worker.tolist() == [0, 1, 1, 1, 1, 1] and free.end == pytest.approx(START + 10 * K_BLOCKS)
    assert one_ahead.worker.tolist() == [0, 1, 0, 1, 1, 1] and one_ahead.end == pytest.approx(START + 11 * K_BLOCKS)


def test_rows_that_no_token_fills_come_from_hbm_once() -> None:
    """A tile's tokens are fetched with all its rows; what was pulled is in L2."""
    tiles, tokens, filled = 8, 100.0, 60.0
    runs = [launch(tiles, machine(workers=8), tokens=tokens, pulled=part * K_BLOCKS) for part in (tokens, filled)]
    weights = tiles * K_BLOCKS * BYTES
    assert [run.hbm_bytes for run in runs] == pytest.approx([weights, weights + K_BLOCKS * (tokens - filled)], rel=1e-9)


def test_a_pair_of_ctas_has_two_blocks() -> None:
    """Whose rows are each fetched, and which Linear2 waits for both of."""
    weights = 2 * K_BLOCKS * BYTES
    run = launch(2, machine(workers=2), tokens=100.0, pulled=60.0 * K_BLOCKS, pools=[(0, 1)])
    assert run.hbm_bytes == pytest.approx(weights + 2 * K_BLOCKS * 40)
    slow = [1.0, 2.0, 3.0, 1.0, 1.0, 1.0]
    run = launch(6, machine(workers=6), [0, 0, 0, 1, 1, 1], multiply=slow, pools=[(0, 1), (1, 1), (2, 2)])
    assert run.stamps[3:, 1] == pytest.approx(START + EPILOGUE + K_BLOCKS * np.array([2, 2, 3]))


def test_results_leave_over_nvlink() -> None:
    run = launch(4, machine(workers=4, nvlink=100.0), nvlink=5000.0)
    assert run.end == pytest.approx(START + K_BLOCKS + 4 * 50.0) and run.nvlink_bytes == 20000.0


def test_a_server_serves_in_order() -> None:
    server = Server(10.0)
    assert server.serve(np.array([0.0, 1.0, 20.0]), np.array([50.0, 50.0, 10.0])).tolist() == [5.0, 10.0, 21.0]
    assert server.take(0.0, 10.0) == 22.0 and server.served == 120.0
