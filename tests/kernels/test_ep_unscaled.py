"""The expert-parallel kernels in BF16 on simulated ranks: rows of two bytes a value and no scales, to the bit, race detector on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ep_runs import check_combine, check_dispatch, checked_dispatch, problem, row_activations, simulated

from ep_traffic import Traffic
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import symmetric_buffer
from megamoe_dsl.problem import Problem
from sweep import rarely

BYTES = 2
RECIPE = "bf16xbf16"


def unscaled(tokens: int, **changes: Any) -> Problem:
    return problem(tokens, **{"num_experts": 4, "hidden": 256, "recipe": RECIPE, **changes})


@pytest.mark.parametrize(
    ("tile", "dispatch", "combine"),
    [
        ((64, 64), {}, {}),
        rarely((128, 256), {"cluster": 2}, {"cluster": 2}),
        rarely((128, 128), {"task_tokens": 4}, {"scatter": False}),
        rarely((64, 64), {"token_saving": False, "token_sorting": False, "block_wise": False}, {"task_tokens": 1}),
        rarely((64, 256), {"token_saving": False, "token_sorting": False}, {"scatter": False}),
        rarely((128, 256), {}, {"interleaved": False}),
        rarely((64, 64), {"block_wise": False}, {"interleaved": False, "token_blocks": 4}),
        rarely((64, 128), {"tail_sms": 1, "cluster": 2}, {"interleaved": False, "token_blocks": 2, "cluster": 2}),
        rarely((128, 64), {"tail_sms": 1, "block_wise": False}, {}),
    ],
)
def test_two_ranks(tile: tuple[int, int], dispatch: dict[str, Any], combine: dict[str, Any]) -> None:
    """Dropped pairs, launches without a pause; all pairs dropped; a rank without a token, data that rounds.  A row crosses as often as the
    tables say."""
    moe = unscaled(9)
    case = random_case(moe, (9, 6), 1, mask=0.2)
    config = DispatchGemmConfig(moe, *tile, num_sms=2, **{"task_tokens": 2, **dispatch})
    ep = simulated(config, case, combine)
    assert checked_dispatch(ep, case, 2).crossed == 2 * BYTES * moe.hidden * Traffic.of(moe, case.topk_idx, config.token_saving).tokens
    assert check_combine(ep, case, row_activations(ep, 0), 2) == 15
    assert check_dispatch(ep, dropped(case)) == 0
    assert check_combine(ep, dropped(case), row_activations(ep, 1)) == 15
    random = replace(random_case(moe, (0, 5), 3, skew=True, exact=False), weights=case.weights)
    assert check_dispatch(ep, random, accumulate="hopper") == 15
    assert check_combine(ep, random, row_activations(ep, 2, exact=False), accumulate="hopper") == 5


def dropped(case: Case) -> Case:
    """No pair is left."""
    return replace(case, topk_idx=[torch.full_like(idx, -1) for idx in case.topk_idx])


@pytest.mark.sweep
@pytest.mark.parametrize(("hidden", "chunk", "fields"), [(5120, 2048, {}), rarely(5120, 2048, {"tail_sms": 1}), rarely(4352, 512, {})])
def test_rows_of_more_chunks_than_slots(hidden: int, chunk: int, fields: dict[str, Any]) -> None:
    """A slot is loaded again before the row is whole, when all lanes that store its chunk have: as often in every row as its turns are."""
    moe = unscaled(4, hidden=hidden, topk=2, intermediate=128)
    case = random_case(moe, (4, 2), 2)
    config = DispatchGemmConfig(moe, 64, 256, num_sms=2, task_tokens=2, **fields)
    assert config.smem.pull_chunk == chunk and BYTES * hidden // chunk > config.smem.pull_slots == 4
    assert checked_dispatch(simulated(config, case), case, 2).crossed == 2 * BYTES * hidden * Traffic.of(moe, case.topk_idx).tokens


def test_the_buffer_has_no_scales() -> None:
    """Rows are twice as long as those of a byte a value."""
    two, one = symmetric_buffer(unscaled(9)), symmetric_buffer(unscaled(9, recipe="fp8xfp8"))
    assert [name for name in ("x_sf", "fc1_sf", "row_sf") if name in two] == []
    assert [two[name].field.num_bytes for name in ("x", "fc1_acts")] == [2 * one[name].field.num_bytes for name in ("x", "fc1_acts")]


def test_formats_of_the_other_architecture_are_refused() -> None:
    for kind in (DispatchGemmConfig, GemmCombineConfig):
        with pytest.raises(ConfigError, match=r"problem\.recipe = 'fp8xfp4': must be .* for sm_90a"):
            kind(unscaled(9, recipe="fp8xfp4"))
