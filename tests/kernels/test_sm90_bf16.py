"""The SM90 kernel in BF16 on simulated ranks: every tile, shapes that end within a tile, pools that are rings, pairs, results of 8 bits.

Race detector on; y equals the reference bit for bit (sm90_runs).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mega_moe_runs import Layer, received
from sm90_runs import config, hopper_case, prove
from sm90_runs import problem as fp8_problem

from megamoe_dsl import Target
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from ptx_of import artifact
from simulated_experts import simulate_experts
from sweep import rarely, sample


def problem(tokens: int = 24, **changes: Any) -> Problem:
    return fp8_problem(tokens, **{"num_experts": 4, "recipe": "bf16xbf16", **changes})


@sample("128-True")
@pytest.mark.parametrize(
    ("block_m", "exact"), [(block_m, False) for block_m in BLOCK_M] + [(8, True), rarely(16, True), rarely(32, True), (128, True)]
)
def test_every_tile(block_m, exact):
    """An expert with a full and a partial block, experts with a few tokens, several K blocks of both linears."""
    moe = problem(block_m + 5, hidden=512, intermediate=256)
    full = block_m - 4
    prove(config(moe, block_m=block_m, lookahead=1, num_stages=3), [(full, 9)], seed=block_m, target_expert=1, mask=0.1, exact=exact)
    counts = received(hopper_case(moe, (full, 9), block_m, target_expert=1))[0]
    assert counts[1] % block_m != 0 and counts[1] > block_m


def test_a_fast_warp_waits_before_it_writes_where_others_read():
    """With a short K a warp can be a whole tile ahead of another."""
    prove(config(problem(32, hidden=128, num_ranks=1), num_sms=2, block_m=8, lookahead=1), [(32,)], exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("block_m", "counts"), [(128, [1, 7, 33, 64, 65, 127]), (32, [1, 8, 9, 31])], ids=["tokens as rows", "tokens as columns"]
)
def test_edges_of_a_tile(block_m, counts):
    kernel = config(problem(block_m, num_ranks=1, topk=1, num_experts=2), block_m=block_m, num_sms=2)
    prove(kernel, [(n,) for n in counts], target_expert=0, exact=False)


@sample("128")
@pytest.mark.parametrize("block_m", [8, 128])
def test_shapes_that_end_within_a_tile(block_m):
    """Channels that are no multiple of a tile's, nor of a K block's."""
    prove(config(problem(40, hidden=352, intermediate=160), block_m=block_m), [(33, 5)], exact=False, mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_four_ranks_unequal_and_empty(block_m):
    moe = problem(16, num_ranks=4, num_experts=8, topk=3)
    prove(config(moe, num_sms=2, block_m=block_m), [(5, 0, 9, 2), (0, 16, 1, 0), (0, 0, 0, 0), (16, 11, 16, 16)], mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("tokens", [(128, 1), rarely((300, 85))])
def test_clusters_of_two(tokens):
    moe = problem(300, hidden=512, intermediate=256)
    prove(config(moe, cluster=2, block_m=128, lookahead=1), [tokens], target_expert=1, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_a_pool_that_is_a_ring(block_m):
    """Rows of tokens and of outputs are used again."""
    moe = problem(200, topk=4)
    prove(config(moe, block_m=block_m, pool_rows=256, lookahead=1), [(200, 131)], exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [8, 128])
@pytest.mark.parametrize("changes", [{"combine": "e4m3"}, {"biases": True}, {"weigh_results": True, "activation": "swigluoai"}], ids=str)
def test_what_else_a_layer_may_have(block_m, changes):
    prove(config(problem(20, **changes), block_m=block_m), [(20, 3)], exact=False)


@pytest.mark.sweep
def test_bits_are_those_of_four_launches():
    """Sums over all of K come in one order, and top-k weights are applied to results: so y is that of `moe`."""
    moe = problem(12, num_ranks=1, topk=3, hidden=512, intermediate=256, weigh_results=True)
    case = hopper_case(moe, (12,), 1, exact=False)
    layer = Layer.of(config(moe, block_m=8), case)
    (rank,), _ = layer.launch(case)
    weights = case.weights[0]
    given = LayerOperands(weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf)
    own = ExpertLayer(512, 256, 4, 3, recipe="bf16xbf16")
    call = ExpertCall(own, case.x[0], case.topk_idx[0], case.topk_weights[0], given)
    y, _ = simulate_experts([artifact(one) for one in own.configs(Target.typical("sm_90a", 4), 12)], call)
    assert rank.unequal == 0 and torch.equal(y, case.reference().y[0])


def test_stages_refuse_it():
    with pytest.raises(
        ConfigError, match=r"problem\.recipe = 'bf16xbf16': must be one whose operands have scales, and no factors, in stages"
    ):
        stage_configs(config(problem()))
