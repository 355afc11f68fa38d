"""SM90 deals tiles at run time: every one exactly once, in ascending order on each SM, more of them to faster SMs, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import pytest
from mega_moe_runs import Layer, received
from sm90_runs import HopperCase, config, hopper_case, problem

from megamoe_dsl.inspect.spans import spans_of
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.layouts.records import Activity, Role
from megamoe_dsl.schedule.fused_moe import FusedMoeOrder, HostTable
from megamoe_dsl.schedule.scheduler import Scheduler
from megamoe_dsl.sim import simulator as machine
from sweep import rarely

SMS = 3
BY_ROLE = {Role.TOKEN_LOADER: (1, Activity.LOAD), Role.WEIGHT_LOADER: (1, Activity.LOAD), Role.MATH: (8, Activity.EPILOGUE)}


@pytest.fixture(scope="module", params=[rarely(16), 128], ids=["columns", "rows"])
def subject(request: pytest.FixtureRequest) -> tuple[Sm90Config, HopperCase]:
    moe = problem(24, intermediate=256, hidden=256, num_experts=16, topk=4)
    kernel = config(moe, num_sms=SMS, block_m=request.param, lookahead=2, num_stages=3, trace=True)
    return kernel, hopper_case(moe, (24, 13), 0, exact=False)


def sequence(kernel: Sm90Config, counts: list[int]) -> Iterator[int]:
    """The blocks of a launch, in order, as stamps carry them."""
    for block in Scheduler.blocks(FusedMoeOrder(kernel, HostTable.of(counts, kernel.block_m))):
        yield 2 * (block.pool_block * 256 + block.n_block) + block.phase


def dynamic_schedule(layer: Layer, case: HopperCase) -> list[list[list[int]]]:
    """Block numbers that each SM of each rank worked on; all roles of the SM agree, and together the SMs have each block once."""
    ranks = []
    for buffers, counts in zip(layer.moe.ranks, received(case), strict=True):
        number = {detail: n for n, detail in enumerate(sequence(layer.moe.artifact.config, counts))}
        walks: dict[tuple[int, Role, int], list[int]] = {}
        for span in spans_of(buffers.trace):
            if span.role in BY_ROLE and span.activity == BY_ROLE[span.role][1]:
                walks.setdefault((span.sm, span.role, span.warp), []).append(number[span.detail])
        sms = []
        for sm in range(SMS):
            mine = [(role, walk) for (its, role, _), walk in walks.items() if its == sm]
            assert {role: sum(its == role for its, _ in mine) for role in BY_ROLE} == {role: warps for role, (warps, _) in BY_ROLE.items()}
            assert all(walk == mine[0][1] for _, walk in mine)
            sms.append(mine[0][1])
        assert sorted(n for walk in sms for n in walk) == list(range(len(number)))
        ranks.append(sms)
    return ranks


def launch(kernel: Sm90Config, case: HopperCase, seed: int) -> list[list[list[int]]]:
    """One checked launch; what it dealt."""
    layer = Layer.of(kernel, case)
    assert [one.unequal for one in layer.check(case, seed)] == [0, 0]
    return dynamic_schedule(layer, case)


def test_the_deal_follows_the_schedule_and_the_result_does_not(subject: tuple[Sm90Config, HopperCase]) -> None:
    deals = [launch(*subject, seed) for seed in range(2)]
    assert deals[0] != deals[1]
    for sms in (sms for ranks in deals for sms in ranks):
        assert [numbers[0] for numbers in sms] == list(range(SMS))
        assert all(a < b for numbers in sms for a, b in pairwise(numbers))


@pytest.mark.sweep
def test_a_slow_sm_takes_fewer_tiles(subject: tuple[Sm90Config, HopperCase], monkeypatch: pytest.MonkeyPatch) -> None:
    """The math warps of SM 0 run in one of eight sweeps."""
    run = machine.run_warp

    def slowly(world: Any, warp: Any, quantum: int) -> None:
        if warp.cta.sm == 0 and warp.index >= 8 and world.sweeps % 8:
            world.progress += 1
        else:
            run(world, warp, quantum)

    monkeypatch.setattr(machine, "run_warp", slowly)
    for slow, *others in launch(*subject, 0):
        assert 3 * len(slow) < 2 * min(map(len, others))


def test_few_tiles_leave_sms_without_one() -> None:
    """One token: two tiles of a phase, seven SMs; those without a tile draw nothing."""
    moe = problem(1, num_ranks=1, num_experts=1, topk=1, intermediate=256, hidden=256)
    layer = Layer.of(config(moe, num_sms=7), case := hopper_case(moe, (1,), 0))
    assert [one.unequal for one in layer.check(case)] == [0]
    assert len(list(islice(sequence(layer.moe.artifact.config, [1]), 9))) == 3
