"""The compiled kernel on simulated ranks: shapes, routings, schedules.  Race detector on; y equals the reference bit for bit.

Every launch finds NaN in all memory that it does not own (`Layer.poison`) and leaves a clean workspace (`Layer.check_workspace`).
"""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from mega_moe_runs import Layer, config, inputs, problem, prove, received, without_masks

from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.moe.dispatch import ALONE
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.runtime import buffers
from megamoe_dsl.schedule import fused_moe
from megamoe_dsl.schedule.fused_moe import FusedMoeOrder
from sweep import rarely, sample


@sample("block_m 192")
@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: f"block_m {tier.block_m}")
def test_every_tier(tier):
    """Two launches per tier: an expert with a full and a partial block, experts with a few tokens, several K blocks."""
    moe = problem(tier.block_m + 5, hidden=512, intermediate=256, num_experts=4)
    kernel = config(moe, block_m=tier.block_m, lookahead=1, num_stages=3)
    full = tier.block_m - 4
    layer = prove(kernel, [(full, 9), (3, full)], target_expert=1, mask=0.1)
    assert layer.moe.artifact.config.store_block_m == tier.store_block_m
    case = random_case(moe, (full, 9), 0, target_expert=1)
    assert received(case)[0][1] % tier.block_m != 0 and received(case)[0][1] > tier.block_m


@pytest.mark.sweep
def test_four_ranks_unequal_and_empty():
    """Tokens come from four ranks, one of which has none, and change between launches; a tenth of the slots is masked."""
    moe = problem(16, num_ranks=4, num_experts=8, topk=3, hidden=512)
    prove(config(moe), [(5, 0, 9, 2), (0, 16, 1, 0), (16, 16, 16, 16)], mask=0.1)


@pytest.mark.sweep
def test_eight_ranks():
    moe = problem(4, num_ranks=8, num_experts=8, topk=4)
    prove(config(moe, num_sms=2), [(4, 0, 1, 2, 3, 4, 0, 1)], mask=0.2)


@pytest.mark.sweep
def test_one_rank_alone():
    moe = problem(16, num_ranks=1, num_experts=4, topk=3)
    prove(config(moe), [(16,), (0,), (7,)])


@pytest.mark.parametrize("block_m", [16, rarely(128)])
def test_told_alone_and_together(block_m):
    """One rank has as many slots as SM 0 tells alone, the other more; then the other way round."""
    most = ALONE // 8
    prove(config(problem(most + 1, topk=8), block_m=block_m), [(most, most + 1), (most + 1, most)], mask=0.8)


def test_no_tokens_at_all():
    """All ranks empty: nothing to do, all barriers still pass; before and after launches with tokens."""
    prove(config(problem()), [(0, 0), (5, 3), (0, 0)])


def test_every_slot_masked():
    """Tokens that go nowhere come back as zeros."""
    moe = problem()
    case = random_case(moe, (7, 3), 0, mask=1.0)
    layer = Layer.of(config(moe), case)
    layer.check(case)
    y, _ = layer.moe(inputs(case))
    assert all(not out.view(torch.int16).any() for out in y)


@pytest.mark.sweep
def test_what_names_no_expert_is_masked(monkeypatch):
    """Indices out of range reach the kernel when nobody looks at values; they must not become addresses."""
    case = random_case(problem(), (9, 5), 0, mask=0.3)
    layer = Layer.of(config(problem()), case)
    layer.check(case)
    want, _ = layer.moe(inputs(case))
    monkeypatch.setattr(buffers, "check_experts", lambda *arguments: None)
    y, report = layer.moe(without_masks(case))
    assert report.findings == [] and all(torch.equal(one, other) for one, other in zip(y, want, strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize("target", [0, 5])
def test_all_tokens_to_one_expert(target):
    """Three M blocks on one expert of one rank, the last one partial; the other rank's experts get nothing."""
    moe = problem(24, topk=1)
    layer = prove(config(moe, block_m=16), [(24, 17), (13, 24)], target_expert=target)
    assert [sum(counts) for counts in layer.received] == ([78, 0] if target < 4 else [0, 78])
    case = random_case(moe, (24, 17), 0, target_expert=target)
    assert received(case)[target // 4][target % 4] == 41


@pytest.mark.sweep
def test_topk_larger_than_local_experts():
    """Top-5 of eight experts on two ranks: every token visits both."""
    prove(config(problem(16, topk=5, num_experts=8)), [(16, 9)])


def test_topk_32():
    """One lane per slot; half of the slots masked."""
    prove(config(problem(6, topk=32, num_experts=40)), [(6, 3)], mask=0.5)


@pytest.mark.sweep
def test_top_k_that_leaves_room_for_one_piece():
    """Warps that combine two pieces load the second when they have summed the first."""
    kernel = config(problem(9, num_ranks=1, topk=27, num_experts=27, hidden=512), num_sms=2)
    plan = kernel.smem.combine
    assert plan.sets == 1 and 9 * plan.pieces > kernel.num_sms * plan.warps
    prove(kernel, [(9,)], mask=0.5)


@sample("34 arrival bits")
@pytest.mark.parametrize(
    ("hidden", "intermediate"), [(4352, 128), (256, 2176), (256, 4224)], ids=["34 scale words a row", "34 arrival bits", "66 parts"]
)
def test_more_than_a_warp_or_a_word_holds(hidden, intermediate):
    """Lanes copy a second round of a row's scale words; the bits of the arrival mask pass 32; parts are counted that have no bit."""
    prove(config(problem(3, num_ranks=1, num_experts=1, topk=1, hidden=hidden, intermediate=intermediate)), [(3,)])


def test_more_than_128_experts():
    """More than there are dispatch threads, and a rank has more than 64, which takes another register budget."""
    moe = problem(49, num_ranks=1, num_experts=130, topk=8)
    layer = prove(config(moe), [(49,), (2,)], mask=0.9, target_expert=129)
    assert ALONE < 49 * 8 and layer.received[0][129] > 0


@pytest.mark.sweep
@pytest.mark.parametrize("local", [rarely(31), 32, rarely(40)])
def test_more_than_a_warp_of_local_experts(local):
    """The scheduler warp scans the counts in rounds of 32; the table has one entry more than experts."""
    moe = problem(8, num_experts=2 * local, topk=6, hidden=256)
    kernel = config(moe, lookahead=1 if local == 31 else local // 2)
    layer = prove(kernel, [(8, 5)])
    assert sum(counts[-1] + counts[0] for counts in layer.received) > 0


@sample("8")
@pytest.mark.parametrize("num_sms", [2, 8])
def test_other_grids(num_sms):
    """One cluster does everything alone; or there are more clusters than some phases have tiles."""
    prove(config(problem(20, hidden=512), num_sms=num_sms, block_m=16), [(20, 7)])


@pytest.mark.sweep
def test_both_phases_alternate(monkeypatch):
    """Linear1 one expert ahead, and runs of two tiles instead of sixteen, so that few tiles go back and forth between the phases."""
    monkeypatch.setattr(fused_moe, "INTERLEAVE", 2)
    moe = problem(28, num_experts=6, topk=2, hidden=768, intermediate=512)
    kernel = config(moe, lookahead=1, block_m=16, num_sms=2)
    phases = [block.phase for block in FusedMoeOrder.blocks(kernel, received(random_case(moe, (28, 21), 0))[0], 0)]
    assert len(list(groupby(phases))) >= 6
    prove(kernel, [(28, 21)])


@pytest.mark.sweep
@pytest.mark.parametrize("stages", [2, 5])
def test_ring_depths(stages):
    """The shortest ring, and one whose length divides no number of K blocks."""
    prove(config(problem(20, hidden=512, intermediate=384), num_stages=stages), [(20, 3)], skew=True)


@pytest.mark.sweep
def test_scheduler_seeds():
    """One case under four random schedules: the same bits, no race, whatever the order."""
    moe = problem(20, intermediate=256)
    kernel = config(moe, block_m=32, num_stages=3)
    case = random_case(moe, (20, 11), 7, mask=0.1)
    instructions = set()
    for seed in range(2):
        layer = Layer.of(kernel, case)
        ranks, report = layer.launch(case, seed)
        assert [one.unequal for one in ranks] == [0, 0]
        assert report.findings == []
        instructions.add(report.instructions)
    assert len(instructions) > 1, "the seeds gave the same schedule"


@pytest.mark.sweep
def test_launches_in_a_row():
    """Five launches on the same buffers with changing token counts; the statistics add up (`check_workspace` after each)."""
    kernel = config(problem(40, hidden=256, num_experts=4), block_m=16)
    launches = [(40, 40), (0, 1), (17, 33), (40, 0), (16, 16)]
    layer = prove(kernel, launches, skew=True)
    assert int(layer.moe.ranks[1].view("launch_epoch")) == len(launches)
    assert sum(map(sum, layer.received)) == 2 * sum(map(sum, launches))
    assert layer.moe.ranks[0].stats.tolist() == layer.received[0]


@pytest.mark.parametrize("seed", [0, rarely(1), rarely(2)])
def test_launches_without_a_pause(seed):
    """Each rank begins its next launch as soon as its last has ended, while the other may still be in it: no race across the launches."""
    moe = problem(24, num_experts=8, topk=3)
    kernel = config(moe, block_m=16)
    case = random_case(moe, (24, 6), seed, mask=0.1)
    layer = Layer.of(kernel, case, seed=seed)
    counts = [(24, 6), (1, 0), (0, 6), (24, 1)]
    ranks, report = layer.stream(case, counts)
    assert report.findings == []
    assert [one.tokens for one in ranks] == [n for tokens in counts for n in tokens]
    assert sum(one.unequal for one in ranks) == 0
    layer.check_workspace()
    assert int(layer.moe.ranks[0].view("launch_epoch")) == len(counts)


@pytest.mark.parametrize("launches", [rarely(2), 3])
def test_launches_of_another_tier_on_the_same_buffers(launches):
    """The pool, its scales and the counters serve every tier: block_m changes from launch to launch, the buffers stay."""
    moe = problem(40, num_experts=4)
    kernels = [config(moe, block_m=m) for m in (16, 192, 64)][:launches]
    layer = Layer.of(kernels[0], random_case(moe, (40, 9), 0))
    for number, kernel in enumerate(kernels):
        layer.retile(kernel)
        layer.check(random_case(moe, (40 - number, 9), number))
    assert int(layer.moe.ranks[0].view("launch_epoch")) == launches
