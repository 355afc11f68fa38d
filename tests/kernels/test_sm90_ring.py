"""A token pool that is a ring, in the compiled SM90 kernel on simulated ranks: rows are used again, and y, race detector and workspace show
nothing of it (sm90_runs)."""

from __future__ import annotations

import pytest
from mega_moe_runs import Layer, received
from sm90_runs import config, hopper_case, problem, prove

from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.schedule.fused_moe import HostTable
from sweep import sample


def turns(kernel: Sm90Config, layer: Layer) -> float:
    """How often the fullest rank has filled the ring, over all launches."""
    return max(HostTable.of(counts, kernel.block_m).first[-1] for counts in layer.received) / kernel.ring_blocks


@sample("0")
@pytest.mark.parametrize("seed", range(2))
def test_smallest_ring(seed):
    """One block of 128 tokens: nothing overlaps, and all tokens go to one expert."""
    kernel = config(problem(300, num_ranks=1, num_experts=2, topk=1), pool_rows=128, block_m=128, num_sms=2)
    assert kernel.ring_blocks == 1
    assert turns(kernel, prove(kernel, [(300,)], seed, target_expert=1, exact=False)) >= 3


@pytest.mark.sweep
def test_small_tiles():
    """Sixteen blocks of eight tokens; the second launch begins where the first has ended."""
    kernel = config(problem(150, num_ranks=1, num_experts=3, topk=1), pool_rows=128, block_m=8, num_sms=3)
    assert turns(kernel, prove(kernel, [(150,), (140,)], exact=False)) > 2


@pytest.mark.sweep
def test_two_tiles_on_one_ring():
    """Kernels of a layer for few and for many tokens have other blocks, and leave a workspace for one another."""
    moe = problem(140, num_ranks=1, num_experts=1, topk=1)
    layer = prove(config(moe, pool_rows=128, block_m=16, num_sms=2), [(140,)], exact=False)
    layer.retile(config(moe, pool_rows=128, block_m=128, num_sms=2))
    case = hopper_case(moe, (140,), 1, exact=False)
    assert [one.unequal for one in layer.check(case, 1)] == [0]


@pytest.mark.sweep
def test_pairs_of_ctas():
    """Two blocks, of which a pair has both; two ranks, of which one receives all."""
    moe = problem(200, num_experts=2, topk=1, hidden=512, intermediate=256)
    kernel = config(moe, pool_rows=256, block_m=128, cluster=2, num_sms=2, lookahead=1)
    assert turns(kernel, prove(kernel, [(200, 190)], target_expert=1, exact=False)) >= 2


@pytest.mark.sweep
def test_four_ranks():
    moe = problem(60, num_ranks=4, num_experts=8, topk=2)
    kernel = config(moe, pool_rows=128, block_m=16, num_sms=2)
    assert turns(kernel, prove(kernel, [(60, 0, 33, 58)], mask=0.1, skew=True)) > 1


@pytest.mark.sweep
@pytest.mark.parametrize("recipe", ["fp8xfp8", "fp8xmxfp4"])
@pytest.mark.parametrize(("block_m", "mask", "skew"), [(8, 0.0, True), (32, 0.3, False), (128, 0.1, True)])
def test_eight_ranks(recipe, block_m, mask, skew):
    """Ranks without tokens, with one and with many, most tokens for the same few experts or dropped, then none at all and other numbers."""
    moe = problem(40, num_ranks=8, num_experts=16, topk=3, recipe=recipe)
    counts = [(40, 0, 33, 1, 38, 0, 40, 7), (0,) * 8, (40,) * 8]
    kernel = config(moe, pool_rows=128, block_m=block_m, num_sms=2)
    assert turns(kernel, prove(kernel, counts, mask=mask, skew=skew, exact=False)) > 1


def test_packed_weights():
    """Weights of 4 bits; tiles of 64 tokens, whose results leave in two parts, and both parts' rows are used again."""
    moe = problem(190, num_ranks=1, num_experts=2, topk=1, recipe="fp8xmxfp4")
    kernel = config(moe, pool_rows=128, block_m=64, num_sms=2)
    assert turns(kernel, prove(kernel, [(190,)], target_expert=0, exact=False)) > 1


@sample("0")
@pytest.mark.parametrize("seed", range(2))
def test_launches_without_a_pause(seed):
    """A rank begins the next launch, on the same rows, while its peer may still be busy with the last."""
    counts = [(90, 60), (3, 90), (70, 9)]
    case = hopper_case(problem(90, num_experts=2, topk=1), (90, 90), seed, target_expert=seed)
    kernel = config(case.problem, block_m=32, num_sms=2, pool_rows=128)
    layer = Layer.of(kernel, case, seed=seed)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 6
    layer.check_workspace()
    assert max(HostTable.of(received(case)[rank], 32).first[-1] for rank in range(2)) > kernel.ring_blocks
