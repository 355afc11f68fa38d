"""Pairs of CTAs that decode a half of their E2M1 weights each, on simulated ranks, with all that a layer may have besides.

Race detector on; y equals the reference bit for bit (sm90_runs).  What pairs do alone is in test_sm90_packed.py.  Two dozen layers are
drawn, for `python -m pytest -m sweep`.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

import pytest
import sm90_runs
from mega_moe_runs import Layer, received
from sm90_runs import hopper_case, prove

from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.schedule.fused_moe import HostTable
from megamoe_dsl.sim import Assumptions
from ptx_of import artifact
from sweep import rarely

DRAWN, SMALLEST = 24, 4
CTA = re.compile(r"rank 0 CTA \([01],0,0\) ")
GPT_OSS = {"activation": "swigluoai", "biases": True}


def problem(tokens: int, **changes: Any) -> Problem:
    """Two blocks of weight rows in each linear, the least that pairs may have."""
    return sm90_runs.problem(tokens, **{"recipe": "fp8xmxfp4", "hidden": 512, "intermediate": 256, "num_experts": 4, **changes})


def pairs(moe: Problem, **overrides: Any) -> Sm90Config:
    return sm90_runs.config(moe, **{"block_m": 128, "cluster": 2, "num_stages": 2, **overrides})


@dataclass(frozen=True)
class Drawn:
    """A layer, its kernel, and the tokens of its launches."""

    kernel: Sm90Config
    launches: tuple[tuple[int, ...], ...]
    data: dict[str, Any]

    @classmethod
    def of(cls, seed: int) -> Drawn:
        """Ranks, experts, channels, ring, activation, results and routing of a number; some ranks have no tokens, some experts either."""
        draw = random.Random(seed)
        ranks = draw.choice((1, 1, 2, 2, 4))
        most = draw.choice((180, 260, 320)) // ranks
        experts = ranks * draw.choice((1, 2, 3))
        gpt_oss = {**GPT_OSS, "weigh_results": draw.random() < 0.5}
        fields = draw.choice(({}, {"activation_clamp": 7.0}, {"activation": "situ"}, gpt_oss))
        rows = draw.choice((None, None, 128, 256))
        moe = problem(
            most,
            num_ranks=ranks,
            num_experts=experts,
            topk=min(experts, draw.choice((1, 2, 3))),
            hidden=draw.choice((512, 480, 960, 1024)),
            intermediate=draw.choice((256, 160, 448, 512)),
            combine=draw.choice(("bf16", "bf16", "e4m3")),
            **fields,
        )
        stages, sms, lookahead = draw.choice((2, 3)), draw.choice((2, 4, 6)), draw.randint(1, moe.experts_per_rank)
        kernel = pairs(moe, num_stages=stages, num_sms=sms, lookahead=lookahead, pool_rows=rows)
        launches = tuple(tuple(draw.choice((0, most, most, draw.randint(1, most))) for _ in range(ranks)) for _ in range(2))
        target = draw.choice((None, *2 * [draw.randrange(experts)]))
        return cls(kernel, launches, {"mask": draw.choice((0.0, 0.3)), "exact": draw.random() < 0.3, "target_expert": target})


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [seed if seed == SMALLEST else rarely(seed) for seed in range(DRAWN)])
def test_drawn_layers(seed: int) -> None:
    one = Drawn.of(seed)
    prove(one.kernel, one.launches, seed, **one.data)


def test_drawn_layers_are_of_every_kind() -> None:
    """Rings, last tiles, biases, results of 8 bits, one to four ranks, idle ones, and experts with no block of tokens to three."""
    drawn = [Drawn.of(seed) for seed in range(DRAWN)]
    problems = [one.kernel.problem for one in drawn]
    assert {moe.num_ranks for moe in problems} == {1, 2, 4} and {moe.combine for moe in problems} == {"bf16", "e4m3"}
    assert {moe.biases for moe in problems} == {False, True} and {moe.activation for moe in problems} == {"silu", "situ", "swigluoai"}
    assert any(moe.hidden % 256 for moe in problems) and any(moe.intermediate % 128 for moe in problems)
    assert {one.kernel.ring_blocks for one in drawn} == {0, 1, 2}
    assert any(0 in tokens and any(tokens) for one in drawn for tokens in one.launches)
    blocks = [
        -(-count // one.kernel.block_m)
        for seed, one in enumerate(drawn)
        for number, tokens in enumerate(one.launches)
        for counts in received(random_case(one.kernel.problem, tokens, seed + number, **one.data))
        for count in counts
    ]
    assert {0, 1, 2, 3} <= set(blocks)


@pytest.mark.sweep
def test_a_pool_that_is_a_ring() -> None:
    """Rows of a pair's two blocks are used again while the next pair decodes."""
    moe = problem(200, num_experts=2, topk=1)
    kernel = pairs(moe, pool_rows=256, num_sms=2, lookahead=1)
    layer = prove(kernel, [(200, 190)], target_expert=1, exact=False)
    assert max(HostTable.of(counts, kernel.block_m).first[-1] for counts in layer.received) >= 2 * kernel.ring_blocks


@pytest.mark.sweep
@pytest.mark.parametrize("weigh_results", [False, rarely(True)])
def test_biases(weigh_results: bool) -> None:
    """An expert with two blocks and a few more tokens, one with half a tile."""
    moe = problem(150, **GPT_OSS, weigh_results=weigh_results)
    prove(pairs(moe), [(150, 120)], target_expert=2, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0, 1])
def test_launches_without_a_pause(seed: int) -> None:
    """A rank begins the next launch while its peer may still be busy with the last."""
    counts = [(140, 60), (3, 140), (130, 0)]
    case = hopper_case(problem(140, num_experts=2, topk=1), (140, 140), seed, target_expert=seed, exact=False)
    layer = Layer.of(pairs(case.problem), case, seed=seed)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 6
    layer.check_workspace()


@pytest.mark.sweep
@pytest.mark.parametrize("assumptions", [rarely(Assumptions(leader=9)), Assumptions(late_loads=True)], ids=["another leader", "late loads"])
def test_lanes(assumptions: Assumptions) -> None:
    """Pairs of two blocks and of one."""
    case = hopper_case(problem(135), (135, 40), 3, target_expert=1, exact=False)
    layer = Layer.of(artifact(pairs(case.problem)), case)
    layer.moe.simulator.assumptions = assumptions
    layer.check(case)
    blocks = [-(-count // 128) for count in received(case)[0]]
    assert max(blocks) > 1 and 1 in blocks


@pytest.mark.sweep
def test_lanes_that_go_together() -> None:
    """As of CTAs alone (test_lanes.py): a math warp's scales, and what decode warps store beside E4M3, where one lane arrives for all."""
    case = hopper_case(problem(140, num_ranks=1, num_experts=1, topk=1), (140,), 0)
    layer = Layer.of(artifact(pairs(case.problem, num_sms=2)), case)
    layer.moe.simulator.assumptions = Assumptions(lockstep=False)
    ranks, report = layer.launch(case)
    assert [one.violations for one in ranks] == [0]
    found = {(one.kind, " smem+" in one.where, CTA.sub("", one.second.split(" mbarrier")[0])) for one in report.findings}
    assert found == {("WAR race", True, "TMA load for"), ("WAR race", True, "warp 12 lane 0")}
