"""The compiled SM90 kernel on simulated ranks: tiles, routings, grids, rings, launches.  Race detector on; y equals the reference bit for
bit (sm90_runs)."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from mega_moe_runs import Layer, first_tokens, inputs, received, without_masks
from sm90_runs import config, hopper_case, problem, prove

from megamoe_dsl.kernels.moe.dispatch import ALONE
from megamoe_dsl.kernels.moe.layouts.smem_plan import DISPATCH_WARPS, RankBarrier
from megamoe_dsl.kernels.moe.layouts.symmetric import pool_tokens
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M
from megamoe_dsl.runtime import buffers
from megamoe_dsl.schedule import fused_moe
from megamoe_dsl.schedule.fused_moe import FusedMoeOrder
from sweep import rarely, sample


@sample("128-True")
@pytest.mark.parametrize(
    ("block_m", "exact"), [(block_m, False) for block_m in BLOCK_M] + [(8, True), rarely(16, True), rarely(32, True), (128, True)]
)
def test_every_tile(block_m, exact):
    """An expert with a full and a partial block, experts with a few tokens, several K blocks; exact data: two launches."""
    moe = problem(block_m + 5, hidden=512, intermediate=256, num_experts=4)
    kernel = config(moe, block_m=block_m, lookahead=1, num_stages=3)
    full = block_m - 4
    prove(kernel, [(full, 9), (3, full)] if exact else [(full, 9)], seed=block_m, target_expert=1, mask=0.1, exact=exact)
    counts = received(hopper_case(moe, (full, 9), block_m, target_expert=1))[0]
    assert counts[1] % block_m != 0 and counts[1] > block_m


@sample("tokens as rows")
@pytest.mark.parametrize(
    ("block_m", "counts"),
    [(128, [1, 7, 9, 33, 63, 64, 65, 127]), (32, [1, 7, 8, 9, 31])],
    ids=["tokens as rows", "tokens as columns"],
)
def test_edges_of_a_tile(block_m, counts):
    """Parts of a warp's 16 rows, of a warpgroup's 64 and of a wgmma's 8 columns; some warps have nothing at all."""
    kernel = config(problem(block_m, num_ranks=1, topk=1, num_experts=2), block_m=block_m, num_sms=2)
    prove(kernel, [(n,) for n in counts], target_expert=0, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [8, rarely(32), 128])
def test_one_rank_alone(block_m):
    moe = problem(16, num_ranks=1, num_experts=4, topk=3)
    prove(config(moe, block_m=block_m), [(16,), (0,), (7,)])


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, 128])
def test_four_ranks_unequal_and_empty(block_m):
    """Tokens come from four ranks, one of which has none, and change between launches; a tenth of the slots is masked."""
    moe = problem(16, num_ranks=4, num_experts=8, topk=3)
    prove(config(moe, num_sms=2, block_m=block_m), [(5, 0, 9, 2), (0, 16, 1, 0), (16, 11, 16, 16)], mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_eight_ranks(block_m):
    """A host full of GPUs: every rank sends to every other one, then only the last one sends."""
    moe = problem(24, num_ranks=8, num_experts=16, topk=6)
    prove(config(moe, block_m=block_m, num_sms=2), [(24, 3, 0, 9, 24, 1, 0, 17), (0, 0, 0, 0, 0, 0, 0, 24)], mask=0.1)


@sample("one and two blocks")
@pytest.mark.parametrize("tokens", [(128, 1), rarely((130, 120)), (300, 85)], ids=["one and two blocks", "two blocks", "four blocks"])
def test_clusters_of_two(tokens):
    """Two CTAs fetch together the weights, or the tokens, of two tiles: also where one token block of an expert is left over."""
    moe = problem(300, hidden=512, intermediate=256, num_experts=4)
    prove(config(moe, cluster=2, block_m=128, lookahead=1), [tokens], target_expert=1, exact=False)


@pytest.mark.sweep
def test_clusters_of_two_over_several_launches():
    """Tiles of many experts with few tokens, grids of one and of three clusters, counts that change, empty ranks."""
    moe = problem(70, num_ranks=4, num_experts=8, topk=3, hidden=512, intermediate=256)
    for num_sms, launches in ((2, [(5, 0, 70, 2)]), (6, [(70, 35, 0, 8), (0, 0, 0, 0), (3, 64, 1, 1)])):
        prove(config(moe, cluster=2, block_m=128, num_sms=num_sms), launches, mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(16), 128])
def test_told_alone_and_together(block_m):
    """One rank has as many slots as SM 0 tells alone, the other more; then the other way round."""
    most = ALONE // 8
    prove(config(problem(most + 1, topk=8), block_m=block_m), [(most, most + 1), (most + 1, most)], mask=0.8)


def test_one_slot_more_than_sm_0_tells_alone():
    """The last slot is in use."""
    moe = problem(55, num_ranks=1, topk=7)
    case = hopper_case(moe, (55,), 3, mask=0.8)
    assert ALONE + 1 == 55 * 7 and int(case.topk_idx[0][-1, -1]) >= 0
    prove(config(moe, block_m=32), [(55,)], seed=3, mask=0.8)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_no_tokens_at_all(block_m):
    """All ranks empty: nothing to do, all barriers still pass; before and after a launch with tokens."""
    prove(config(problem(), block_m=block_m), [(0, 0), (5, 3), (0, 0)])


@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_every_slot_masked(block_m):
    """Tokens that go nowhere come back as zeros."""
    moe = problem()
    case = hopper_case(moe, (7, 3), 0, mask=1.0)
    layer = Layer.of(config(moe, block_m=block_m), case)
    layer.check(case)
    y, _ = layer.moe(inputs(case))
    assert all(not out.view(torch.int16).any() for out in y)


@pytest.mark.sweep
@pytest.mark.parametrize("tokens", [9, ALONE // 8 + 1])
def test_what_names_no_expert_is_masked(tokens, monkeypatch):
    """Indices out of range reach the kernel when nobody looks at values; they must not become addresses."""
    moe = problem(tokens, topk=8)
    case = hopper_case(moe, (tokens, tokens), 0, mask=0.8)
    layer = Layer.of(config(moe, block_m=16), case)
    layer.check(case)
    want, _ = layer.moe(inputs(case))
    monkeypatch.setattr(buffers, "check_experts", lambda *arguments: None)
    y, report = layer.moe(without_masks(case))
    assert report.findings == [] and all(torch.equal(one, other) for one, other in zip(y, want, strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize("target", [0, 5])
@pytest.mark.parametrize("block_m", [16, 128])
def test_all_tokens_to_one_expert(block_m, target):
    """Several M blocks on one expert of one rank, the last one partial; the other rank's experts get nothing."""
    tokens = block_m + 5
    layer = prove(config(problem(tokens, topk=1), block_m=block_m), [(tokens, block_m)], target_expert=target)
    total = tokens + block_m
    assert [sum(counts) for counts in layer.received] == ([total, 0] if target < 4 else [0, total])
    assert total % block_m and total > 2 * block_m


def test_as_many_blocks_as_the_pool_can_hold():
    """A full pool in the smallest tiles: 25 blocks of 8, one more than there would be of 16."""
    moe = problem(193, num_ranks=1, num_experts=1, topk=1)
    assert moe.max_tokens_per_rank > 8 * (pool_tokens(moe) // 16)
    prove(config(moe, block_m=8), [(193,)])


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(8), 128])
def test_topk_larger_than_local_experts(block_m):
    """Top-5 of eight experts on two ranks: every token visits both."""
    prove(config(problem(16, topk=5), block_m=block_m), [(16, 9)], exact=False)


@pytest.mark.sweep
def test_topk_32():
    """One lane per slot; half of the slots masked."""
    prove(config(problem(6, topk=32, num_experts=40)), [(6, 3)], mask=0.5)


def test_top_k_that_leaves_room_for_one_piece():
    """Warps that combine two pieces load the second when they have summed the first."""
    kernel = config(problem(9, num_ranks=1, topk=27, num_experts=27, hidden=512), num_sms=2)
    plan = kernel.smem.combine
    assert plan.sets == 1 and 9 * plan.pieces > kernel.num_sms * plan.warps
    prove(kernel, [(9,)], mask=0.5)


@pytest.mark.sweep
@pytest.mark.parametrize("local", [31, rarely(32), rarely(40)])
def test_more_than_a_warp_of_local_experts(local):
    """The scheduler warp scans the counts in rounds of 32; the table has one entry more than experts."""
    moe = problem(8, num_experts=2 * local, topk=6)
    layer = prove(config(moe, lookahead=1 if local == 31 else local // 2), [(8, 5)])
    assert sum(counts[-1] + counts[0] for counts in layer.received) > 0


@pytest.mark.sweep
def test_more_than_128_experts():
    """More than there are dispatch threads: told together and alone; the last expert has tokens."""
    moe = problem(49, num_ranks=1, num_experts=130, topk=8)
    layer = prove(config(moe, block_m=8), [(49,), (2,)], mask=0.9, target_expert=129)
    assert ALONE < 49 * 8 and layer.received[0][129] > 0


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "num_sms"), [rarely(16, 2), (16, 3), rarely(16, 7), (128, 3)])
def test_grids_that_divide_nothing(block_m, num_sms):
    """Fewer CTAs than tiles, a number that divides no number of tiles, and more CTAs than some phases have tiles."""
    prove(config(problem(20, hidden=512, intermediate=256), num_sms=num_sms, block_m=block_m), [(20, 7)], exact=False)


@pytest.mark.parametrize(("block_m", "cluster", "tokens"), [(8, 1, (20, 13)), rarely(128, 1, (140, 33)), rarely(128, 2, (500,))])
def test_both_phases_alternate(block_m, cluster, tokens, monkeypatch):
    """Linear1 one expert ahead, and runs of two tiles instead of sixteen, so that few tiles go back and forth between the phases."""
    monkeypatch.setattr(fused_moe, "INTERLEAVE", 2)
    ranks = len(tokens)
    moe = problem(max(tokens), num_ranks=ranks, num_experts=3 * ranks, topk=ranks, hidden=512, intermediate=512)
    kernel = config(moe, lookahead=1, block_m=block_m, cluster=cluster, num_sms=2)
    case = hopper_case(moe, tokens, 0)
    phases = [block.phase for block in FusedMoeOrder.blocks(kernel, received(case)[0], 0)]
    assert len(list(groupby(phases))) >= 6
    prove(kernel, [tokens])


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "stages"), [rarely(8, 2), rarely(8, 5), (8, 0), (128, 3), rarely(128, 0)])
def test_ring_depths(block_m, stages):
    """The shortest ring, one whose length divides no number of K blocks, and the deepest: it holds several tiles at once."""
    prove(config(problem(20, hidden=512, intermediate=384), block_m=block_m, num_stages=stages), [(20, 3)], skew=True)


@sample("128-4352-128")
@pytest.mark.parametrize(("block_m", "hidden", "intermediate"), [rarely(8, 4352, 128), (128, 4352, 128), (8, 256, 8320)])
def test_more_k_blocks_than_lanes(block_m, hidden, intermediate):
    """A lane holds the weight scales of K blocks l and l + 32; 65 parts of the activations, which are counted.  A warp moves two rows
    of 17 chunks through four slots."""
    tokens = 13 if hidden > 4096 else 3
    moe = problem(tokens, num_ranks=1, num_experts=1, topk=1, hidden=hidden, intermediate=intermediate)
    kernel = config(moe, block_m=block_m, num_sms=3)
    assert tokens == 3 or (hidden // kernel.smem.pull_chunk % kernel.smem.pull_slots and tokens > DISPATCH_WARPS * kernel.num_sms)
    prove(kernel, [(tokens,)], exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [rarely(32), 128])
def test_scheduler_seeds(block_m):
    """One case under four random schedules: the same bits, no race, whatever the order."""
    moe = problem(20, intermediate=256, num_experts=4)
    kernel = config(moe, block_m=block_m, num_stages=3)
    case = hopper_case(moe, (20, 11), 7, mask=0.1, exact=False)
    instructions = set()
    for seed in range(4):
        ranks, report = Layer.of(kernel, case).launch(case, seed)
        assert [one.unequal for one in ranks] == [0, 0]
        assert report.findings == []
        instructions.add(report.instructions)
    assert len(instructions) > 1, "the seeds gave the same schedule"


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, rarely(128)])
def test_launches_in_a_row(block_m):
    """Five launches on the same buffers with changing token counts; the statistics add up (`check_workspace` after each)."""
    kernel = config(problem(40, num_experts=4), block_m=block_m)
    launches = [(40, 40), (0, 1), (17, 33), (40, 0), (16, 16)]
    layer = prove(kernel, launches, skew=True)
    assert int(layer.moe.ranks[1].view("launch_epoch")) == len(launches)
    assert layer.moe.ranks[0].stats.tolist() == layer.received[0]


@sample("128-2-0")
@pytest.mark.parametrize("seed", [0, rarely(1)])
@pytest.mark.parametrize(("block_m", "cluster"), [(8, 1), rarely(32, 1), (128, 1), (128, 2)])
def test_launches_without_a_pause(block_m, cluster, seed):
    """Three launches in a stream: a rank begins the next one while its peer may still be busy with the last."""
    counts = [(20, 11), (3, 20), (0, 9)]
    moe = problem(20, num_experts=4, hidden=256 * cluster, intermediate=128 * cluster)
    case = hopper_case(moe, (20, 20), seed, exact=False)
    layer = Layer.of(config(moe, block_m=block_m, num_sms=2 if cluster == 2 else 3, cluster=cluster), case, seed=seed)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 6 and [one.tokens for one in ranks] == [20, 11, 3, 20, 0, 9]
    layer.check_workspace()
    assert layer.received[0] == [sum(one) for one in zip(*(received(first_tokens(case, n))[0] for n in counts), strict=True)]


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, 128])
def test_eight_ranks_without_a_pause(block_m):
    """Ranks that have more or less to do than others begin the next launch at other times; nobody overtakes anybody by more than one."""
    counts = [(20, 1, 0, 3, 20, 0, 7, 11), (0, 20, 5, 0, 1, 16, 0, 2), (3, 3, 3, 20, 0, 0, 9, 0)]
    moe = problem(20, num_ranks=8, num_experts=16, topk=4)
    case = hopper_case(moe, (20,) * 8, 0, exact=False)
    layer = Layer.of(config(moe, block_m=block_m, num_sms=2), case)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 24
    assert [one.tokens for one in ranks] == [n for launch in counts for n in launch]
    layer.check_workspace()


@sample("epoch")
@pytest.mark.parametrize(
    "launches_so_far",
    [(1 << 32) - 2, rarely((1 << 32) // 3), (1 << 31) // 2, rarely((1 << 30) - 1), rarely((1 << 31) // 3)],
    ids=["epoch", "CTAs", "ranks", "sign of ranks", "sign of CTAs"],
)
def test_counters_that_wrap(launches_so_far):
    """Counters only grow, modulo 2^32: 132 CTAs' arrivals pass it after half an hour of launches of 60 us, and 2^31 after half of it."""
    most = ALONE // 8 + 1
    counts = [(most, 1), (1, most), (3, 0)]
    moe = problem(most, topk=8)
    case = hopper_case(moe, (most, most), 0, mask=0.8)
    assert all(min(rank) >= 5 for rank in received(first_tokens(case, counts[0])))
    layer = Layer.of(config(moe, block_m=16, num_sms=3), case)
    for rank in layer.moe.ranks:
        set_counter(rank.view("launch_epoch"), launches_so_far)
        set_counter(rank.view("grid_arrivals"), 3 * launches_so_far)
        set_counter(rank.view("rank_signal")[RankBarrier.BEFORE_COMBINE :], 2 * launches_so_far)
        for name in ("expert_recv_count_sum", "expert_counts_seen"):
            set_counter(rank.view(name), (2 * launches_so_far << 32) + (1 << 32) - 5)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 6
    assert {int(rank.view("launch_epoch")) for rank in layer.moe.ranks} == {signed(launches_so_far + 3, 32)}


def set_counter(words: torch.Tensor, value: int) -> None:
    words.fill_(signed(value, 8 * words.element_size()))


def signed(value: int, bits: int) -> int:
    """The value of a register's bits, as torch's signed types have it."""
    low = value % (1 << bits)
    return low - (1 << bits) if low >> (bits - 1) else low
