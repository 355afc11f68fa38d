"""`dispatch_grouped_gemm` on simulated ranks: every row of Linear1 to the bit, race detector on; and what crosses between ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ep_runs import check_dispatch, checked_dispatch, only_first_ranks, problem, simulated, small_config
from mega_moe_runs import inputs

from ep_traffic import Traffic
from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.watchdog import WatchdogError
from sweep import rarely, sample

MOE = problem()
SMALL = DispatchGemmConfig(MOE, 64, 128, num_sms=2, task_tokens=4)


@sample("64-128-2")
@pytest.mark.parametrize(
    ("block_m", "block_n", "cluster"),
    [(128, 256, 1), (64, 128, 2), rarely(128, 64, 1), rarely(64, 64, 1), rarely(64, 256, 1), rarely(128, 128, 1), rarely(128, 256, 2)],
)
def test_two_ranks(block_m: int, block_n: int, cluster: int) -> None:
    """Dropped pairs, most tokens for the same few experts; a rank without tokens; all pairs dropped; data that rounds."""
    config = DispatchGemmConfig(MOE, block_m, block_n, num_sms=2, cluster=cluster, task_tokens=4)
    masked, skewed = random_case(MOE, (20, 9), 1, mask=0.3), random_case(MOE, (0, 20), 2, skew=True)
    ep = simulated(config, masked)
    assert check_dispatch(ep, masked) > 0
    for weights, buffers in zip(skewed.weights, ep.ranks, strict=True):
        buffers.weights = weights
    assert check_dispatch(ep, skewed) == 60
    assert check_dispatch(ep, replace(skewed, topk_idx=[torch.full_like(idx, -1) for idx in skewed.topk_idx])) == 0
    random = replace(random_case(MOE, (7, 5), 3, exact=False), weights=skewed.weights)
    assert check_dispatch(ep, random, accumulate="hopper") > 0


@pytest.mark.parametrize(
    ("block_m", "block_n", "options"),
    [
        (64, 128, {"tail_sms": 1, "cluster": 2}),
        rarely(128, 64, {"tail_sms": 1, "block_wise": False, "token_sorting": False}),
        rarely(128, 128, {"tail_sms": 1}),
    ],
)
def test_a_token_stored_once(block_m: int, block_n: int, options: dict[str, Any]) -> None:
    """Rows that the warps of tail SMs copy: two launches, none of whose tokens crosses twice; then other tokens."""
    moe = problem(9, num_experts=10, hidden=256)  # more groups of rows than a tail SM has warps
    case = random_case(moe, (9, 6), 1, mask=0.3)
    config = DispatchGemmConfig(moe, block_m, block_n, **{"num_sms": 2, "task_tokens": 2, **options})
    ep = simulated(config, case)
    assert checked_dispatch(ep, case, 2).crossed == 2 * moe.hidden * Traffic.of(moe, case.topk_idx, config.token_saving).tokens
    assert check_dispatch(ep, replace(case, topk_idx=[torch.full_like(idx, -1) for idx in case.topk_idx])) == 0
    random = replace(random_case(moe, (0, 5), 3, exact=False), weights=case.weights)
    assert check_dispatch(ep, random, accumulate="hopper") > 0


@pytest.mark.sweep
@pytest.mark.parametrize(("experts", "hidden"), [(32, 256), (4, 4352)])
def test_more_than_a_warp_has_lanes(experts: int, hidden: int) -> None:
    """32 local experts, behind which the table of rows ends; scales of a token in more than 32 words."""
    moe = problem(5, num_ranks=1, num_experts=experts, hidden=hidden)
    case = random_case(moe, (5,), 1, mask=0.1)
    assert check_dispatch(simulated(replace(SMALL, problem=moe), case), case) > 0


def test_launches_without_a_pause() -> None:
    """Each finds counters as the one before left them for it, while the other rank may still be in that one."""
    case = random_case(MOE, (12, 7), 4, mask=0.1)
    ep = simulated(SMALL, case, seed=5)
    check_dispatch(ep, case, launches=3)
    assert [buffers.view("launch_epoch").tolist() for buffers in ep.ranks] == [[3, 0, 0]] * 2


@sample("True")
@pytest.mark.parametrize("block_wise", [True, False])
def test_one_rank_with_several_tiles_of_an_expert(block_wise: bool) -> None:
    """A whole tile, and less than half a tile after it, each waiting for its own rows or for both's; an expert without rows."""
    moe = problem(150, num_ranks=1, num_experts=3, topk=1, hidden=256)
    case = random_case(moe, (150,), 6, target_expert=1)
    assert check_dispatch(simulated(DispatchGemmConfig(moe, 128, 128, num_sms=2, block_wise=block_wise), case), case) == 150


@sample("False-False-False")
@pytest.mark.parametrize(
    ("token_saving", "token_sorting", "block_wise"),
    [(True, True, False), (False, True, True), (False, False, False), (True, False, True)],
)
def test_tokens_saved_do_not_cross(token_saving: bool, token_sorting: bool, block_wise: bool) -> None:
    """The rows that bulk copies fetch from the other rank are those that the tables count."""
    moe = problem(9, num_experts=6, hidden=256)
    case = random_case(moe, (9, 6), 7, mask=0.1)
    options = {"token_saving": token_saving, "token_sorting": token_sorting, "block_wise": block_wise}
    config = DispatchGemmConfig(moe, 64, 64, num_sms=2, **options)
    ep = simulated(config, case)
    traffic = Traffic.of(moe, case.topk_idx, config.token_saving)
    assert traffic.tokens < traffic.pairs or not token_saving
    assert checked_dispatch(ep, case).crossed == moe.hidden * traffic.tokens


@pytest.mark.parametrize("config", [SMALL, small_config(problem(recipe="fp8xfp4"))], ids=lambda config: config.arch)
def test_a_rank_that_stays_away_is_named(config: DispatchGemmConfig) -> None:
    """Rank 1 never launches: rank 0 gives up, and says at which barrier."""
    case = random_case(config.problem, (3, 2), 8)
    ep = simulated(config, case, watchdog_ns=20_000)
    with (
        only_first_ranks(ep, 1),
        pytest.raises(WatchdogError, match=r"rank 0, SM \d+, dispatch: wait RANK \(rank barrier INPUTS\) exceeded its limit"),
    ):
        ep.dispatch(inputs(case))


def test_bad_arguments_are_named() -> None:
    case = random_case(MOE, (3, 2), 8)
    with pytest.raises(ProblemError, match=r"len\(weights\) = 1"):
        simulated(SMALL, replace(case, weights=case.weights[:1]))
    with pytest.raises(ProblemError, match=r"len\(inputs\) = 1"):
        simulated(SMALL, case).dispatch(inputs(case)[:1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("block_m", 96), ("block_n", 96), ("num_sms", 0), ("num_stages", 1), ("num_stages", 99)),
        *(
            ("token_saving", 1),
            ("token_sorting", None),
            ("block_wise", 0),
            ("task_tokens", 0),
            ("task_tokens", 33),
            ("problem", None),
            ("cluster", 3),
        ),
    ],
)
def test_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = {value!r}: must be "):
        SMALL.replace(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "others"),
    [
        ("tail_sms", -1, {}),
        ("tail_sms", 2, {}),
        ("tail_sms", "1", {}),
        ("tail_sms", 1, {"token_saving": False}),
    ],
)
def test_choices_that_contradict_are_named(field: str, value: object, others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = {value!r}: must be "):
        SMALL.replace(**{field: value, **others})


@pytest.mark.parametrize(("field", "value"), [("recipe", "fp8xmxfp4"), ("combine", "e4m3"), ("activation_clamp", 7.0), ("biases", True)])
def test_bad_problems_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"problem\.{field} = {value!r}: must be "):
        DispatchGemmConfig(replace(MOE, **{field: value}))
    assert isinstance(MOE, Problem)
