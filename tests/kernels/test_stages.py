"""The unfused layer on simulated ranks: y of every launch equals the fused kernel's to the bit, race detector on."""

from __future__ import annotations

import json
import pickle

import pytest
from sm90_runs import config, hopper_case, problem
from stage_runs import prove_equal, prove_turns, stages_of, unfused_layer

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.store import describe_config, read_config
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.dispatch import ALONE
from megamoe_dsl.kernels.moe.unfused.config import StageConfig
from megamoe_dsl.kernels.moe.unfused.family import STAGES, stage_configs
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.runtime.simulated import SimulatedMoE
from sweep import sample

MOE = problem(20, num_experts=4)
COLUMNS = config(MOE, block_m=8, num_sms=2)
"""A configuration of several tests, which then compile its stages once."""


@sample("tokens as columns")
@pytest.mark.parametrize("block_m", [8, 128], ids=["tokens as columns", "tokens as rows"])
def test_two_ranks(block_m: int) -> None:
    """Masked slots, most tokens for the same few experts, a rank without tokens, all slots masked; random data."""
    masked, skewed = hopper_case(MOE, (20, 9), 1, mask=0.3, exact=False), hopper_case(MOE, (0, 20), 2, skew=True, exact=False)
    prove_equal(config(MOE, block_m=block_m, num_sms=2), [masked, skewed, hopper_case(MOE, (3, 2), 3, mask=1.0)])


@pytest.mark.sweep
def test_one_rank() -> None:
    """More slots than SM 0 tells alone, an expert with full blocks and a partial one; then no tokens."""
    moe = problem(130, num_ranks=1, num_experts=4, topk=3)
    assert ALONE < 130 * 3
    some = hopper_case(moe, (130,), 4, target_expert=1, mask=0.7, exact=False)
    prove_equal(config(moe, block_m=32, num_sms=2), [some, hopper_case(moe, (0,), 5)])


@pytest.mark.sweep
def test_clusters_of_two() -> None:
    """Linear stages in pairs of CTAs; two blocks of intermediate channels, so that half of a warp of SwiGLU has nothing."""
    moe = problem(150, num_ranks=1, hidden=512, intermediate=256, num_experts=2, topk=1)
    prove_equal(config(moe, cluster=2, block_m=128, num_sms=4), [hopper_case(moe, (150,), 6, target_expert=1, exact=False)])


@pytest.mark.sweep
def test_rows_in_parts() -> None:
    """Of a row several warps send a part, and two do SwiGLU, the second with less than a warp has room for."""
    moe = problem(3, num_ranks=1, hidden=2304, intermediate=640, num_experts=2, topk=1)
    kernel = config(moe, block_m=8, num_sms=2)
    swiglu, combine = stage_configs(kernel)[2], stage_configs(kernel)[4]
    assert (swiglu.token_parts, combine.push_channels) == (2, 768)
    prove_equal(kernel, [hopper_case(moe, (3,), 10, exact=False)])


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, 128])
def test_packed_weights(block_m: int) -> None:
    """Weights of 4 bits, decoded by the math warps of the linear stages, also where the fused kernel has warps that decode for them and
    a larger tile; clamped activations."""
    moe = problem(9, num_ranks=1, num_experts=4, recipe="fp8xmxfp4", activation_clamp=1.0)
    prove_equal(config(moe, block_m=block_m, num_sms=2), [hopper_case(moe, (9,), 7, exact=False)])


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4"])
@pytest.mark.parametrize("block_m", [8, 128])
def test_eight_ranks(recipe: str, block_m: int) -> None:
    """Ranks without tokens, skewed and masked routing, all slots masked, then all tokens."""
    moe = problem(12, num_ranks=8, num_experts=16, topk=4, recipe=recipe)
    some, none = (12, 0, 5, 1, 12, 7, 0, 3), (2,) * 8
    cases = [hopper_case(moe, some, 1, skew=True, exact=False), hopper_case(moe, some[::-1], 2, mask=0.3, exact=False)]
    every = hopper_case(moe, (12,) * 8, 4, exact=False)
    prove_equal(config(moe, block_m=block_m, num_sms=2), [*cases, hopper_case(moe, none, 3, mask=1.0), every])


def test_calls_without_a_pause() -> None:
    """A rank begins its next call when its last has ended, whatever the other ranks do; the reference's bits."""
    case = hopper_case(MOE, (12, 7), 8, mask=0.1)
    layer = unfused_layer(stages_of(COLUMNS), case)
    ranks, report = layer.stream(case, [(12, 7), (0, 3), (12, 0)])
    assert report.findings == [] and [one.unequal for one in ranks] == [0] * len(ranks)
    layer.check_workspace()


def test_fused_and_unfused_calls_take_turns_on_one_buffer() -> None:
    """Counters of the workspace stand after either as the other expects."""
    prove_turns(COLUMNS, hopper_case(MOE, (6, 1), 9))


def test_stages_follow_the_fused_choice() -> None:
    """Tile and grid are the fused kernel's, rings the stages' own."""
    for tokens in (1, 64, 2048):
        fused = choose(problem(2048, hidden=4096, intermediate=2048), Target.typical("sm_90a"), tokens)
        stages = stage_configs(fused)
        assert {(one.block_m, one.num_sms) for one in stages} == {(fused.block_m, fused.num_sms)}
        assert all(one.num_stages >= fused.num_stages for one in stages[1::2])


def test_stages_in_another_order_are_refused() -> None:
    case = hopper_case(MOE, (4, 0), 0)
    stages = stages_of(COLUMNS)
    with pytest.raises(ProblemError, match="stages = "):
        SimulatedMoE(stages[::-1], case.weights)
    assert [one.kernel.name for one in stages] == [stage.name for stage in STAGES]


def test_what_stages_do_not_take_is_named() -> None:
    """A pool that is a ring, whose rows Linear2 gives back while dispatch waits for them, and an unknown stage are refused.  Stamps and
    warps that decode for others are left out."""
    moe = problem(2048, num_experts=8, topk=4)
    ring = config(moe, block_m=128, pool_rows=1024)
    with pytest.raises(ConfigError, match=r"pool_rows = 1024: must be None, or enough for any routing, in stages"):
        stage_configs(ring)
    assert not any(one.trace for one in stage_configs(config(moe, block_m=128).replace(trace=True)))
    packed = config(problem(2048, recipe="fp8xmxfp4"), block_m=128)
    assert packed.decoded and {one.block_m for one in stage_configs(packed)} == {64}
    with pytest.raises(ConfigError, match=r"stage = 'linear': must be one of dispatch, fc1, swiglu, fc2, combine"):
        StageConfig(packed, "linear")


def test_a_stage_is_a_description_of_json_values() -> None:
    """A configuration that holds another is read back as it was, and each stage has its own kernel."""
    for one in stage_configs(COLUMNS):
        assert read_config(json.loads(json.dumps(describe_config(one)))) == one == pickle.loads(pickle.dumps(one))
        assert kernel_of(one).name == f"moe_{one.stage}"
