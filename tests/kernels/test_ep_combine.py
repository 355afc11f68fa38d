"""`grouped_gemm_combine` on simulated ranks: y of every token to the bit, race detector on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ep_runs import check_combine, only_first_ranks, problem, row_activations, simulated
from mega_moe_runs import inputs

from megamoe_dsl.cases import random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.watchdog import WatchdogError
from sweep import rarely, sample

MOE = problem()
SMALL = DispatchGemmConfig(MOE, 64, 128, num_sms=2, task_tokens=3)


@sample("128-256-1-False")
@pytest.mark.parametrize("scatter", [True, False])
@pytest.mark.parametrize(
    ("block_m", "block_n", "cluster"),
    [
        (128, 256, 1),
        rarely(64, 128, 2),
        rarely(128, 64, 1),
        rarely(64, 64, 1),
        rarely(64, 256, 1),
        rarely(128, 128, 1),
        rarely(128, 256, 2),
    ],
)
def test_two_ranks(block_m: int, block_n: int, cluster: int, scatter: bool) -> None:
    """Dropped pairs, most tokens for the same few experts; a rank without tokens; all pairs dropped; data that rounds."""
    masked, skewed = random_case(MOE, (20, 9), 1, mask=0.3), random_case(MOE, (0, 20), 2, skew=True)
    ep = simulated(SMALL.replace(block_m=block_m, block_n=block_n, num_stages=0), masked, {"cluster": cluster, "scatter": scatter})
    ep.store(inputs(masked))
    assert check_combine(ep, masked, row_activations(ep, 0)) == 29
    skewed = replace(skewed, weights=masked.weights)
    ep.store(inputs(skewed))
    assert check_combine(ep, skewed, row_activations(ep, 1)) == 20
    nothing = replace(skewed, topk_idx=[torch.full_like(idx, -1) for idx in skewed.topk_idx])
    ep.store(inputs(nothing))
    assert check_combine(ep, nothing, row_activations(ep, 2)) == 20
    ep.store(inputs(skewed))
    assert check_combine(ep, skewed, row_activations(ep, 3, exact=False), accumulate="hopper") == 20


@pytest.mark.parametrize(
    ("block_m", "block_n", "options"),
    [
        (64, 64, {"token_blocks": 4}),
        rarely(64, 128, {"cluster": 2}),
        rarely(128, 256, {"token_blocks": 2}),
        rarely(128, 64, {"token_blocks": 2, "cluster": 2}),
        rarely(64, 256, {}),
    ],
)
def test_results_that_warps_send(block_m: int, block_n: int, options: dict[str, int]) -> None:
    """Parts of rows, when their tiles are done, by TMA where a warp's 16 rows are all there; three launches, of which the last has the
    first one's counters, then one without a pair."""
    moe = problem(16, num_experts=4, topk=2, hidden=block_n * (4 if block_n < 256 else 2))
    case = random_case(moe, (16, 6), 1, mask=0.1, target_expert=1)
    ep = simulated(DispatchGemmConfig(moe, block_m, block_n, num_sms=2, task_tokens=1), case, {"interleaved": False, **options})
    ep.store(inputs(case))
    assert check_combine(ep, case, row_activations(ep, 0), 3) == 22
    nothing = replace(case, topk_idx=[torch.full_like(idx, -1) for idx in case.topk_idx])
    ep.store(inputs(nothing))
    assert check_combine(ep, nothing, row_activations(ep, 1)) == 22


@pytest.mark.parametrize(
    ("field", "value", "others"),
    [
        ("interleaved", 1, {}),
        ("interleaved", False, {"scatter": False}),
        ("token_blocks", 2, {}),
        ("token_blocks", 0, {"interleaved": False}),
        ("token_blocks", 3, {"interleaved": False}),
        ("token_blocks", "2", {"interleaved": False}),
        ("scatter", "off", {}),
    ],
)
def test_bad_fields_are_named(field: str, value: object, others: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=rf"{field} = {value!r}: must be "):
        GemmCombineConfig(MOE, 64, 128, **{field: value, **others})


@pytest.mark.sweep
def test_launches_without_a_pause() -> None:
    """Each finds counters as the one before left them for it, while the other rank may still be in that one."""
    case = random_case(MOE, (12, 7), 4, mask=0.1)
    ep = simulated(SMALL, case, seed=5)
    ep.store(inputs(case))
    check_combine(ep, case, row_activations(ep, 0), launches=3)
    assert [buffers.view("launch_epoch").tolist() for buffers in ep.ranks] == [[0, 3, 0]] * 2


def test_one_rank_with_several_pieces_of_a_token() -> None:
    """Rows that a warp gathers in more pieces than it has sets of slots; eight results of a token."""
    moe = problem(5, num_ranks=1, num_experts=8, topk=8, hidden=768)
    case = random_case(moe, (5,), 6)
    ep = simulated(DispatchGemmConfig(moe, 64, 128, num_sms=2, task_tokens=2), case)
    ep.store(inputs(case))
    assert ep.combine_kernel.config.smem.combine.pieces == 3
    assert check_combine(ep, case, row_activations(ep, 0)) == 5


def test_a_rank_that_stays_away_is_named() -> None:
    """Rank 1 never launches: rank 0, which has no tiles, gives up, and says at which barrier."""
    case = random_case(MOE, (3, 2), 8, mask=1.0)
    ep = simulated(SMALL, case, watchdog_ns=15_000)
    ep.store(inputs(case))
    with only_first_ranks(ep, 1), pytest.raises(WatchdogError, match=r", combine: wait RANK \(rank barrier RESULTS\) exceeded its limit"):
        ep.combine(row_activations(ep, 0), (3, 2))


def test_bad_arguments_are_named() -> None:
    case = random_case(MOE, (3, 2), 8)
    ep = simulated(SMALL, case)
    ep.store(inputs(case))
    acts = row_activations(ep, 0)
    with pytest.raises(ProblemError, match=r"len\(acts\) = 1"):
        ep.combine(acts[:1], (3, 2))
    with pytest.raises(ProblemError, match=r"acts\[1\]\.values\.dtype = torch\.uint8"):
        ep.combine([acts[0], RowActivations(acts[1].values.view(torch.uint8), acts[1].scales)], (3, 2))
    with pytest.raises(ProblemError, match=r"num_tokens = 21"):
        ep.combine(acts, (3, 21))
