"""More ranks than a warp has lanes: the ranks that an expert's tokens come from are held by lanes in sets of 32."""

from __future__ import annotations

from types import ModuleType

import mega_moe_runs
import pytest
import sm90_runs
from mega_moe_runs import Layer
from sm90_runs import hopper_case
from stage_runs import stages_of, unfused_layer

from megamoe_dsl.cases import random_case
from megamoe_dsl.reference import dispatch_order
from ptx_of import artifact
from sweep import rarely, sample


@sample("sm90_runs-33 ranks")
@pytest.mark.parametrize(
    ("runs", "ranks"),
    [(mega_moe_runs, 40), (sm90_runs, 33), *(rarely(sm90_runs, ranks) for ranks in (40, 64, 72)), rarely(mega_moe_runs, 72)],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else f"{value} ranks",
)
def test_one_launch(runs: ModuleType, ranks: int) -> None:
    """Two tokens or fewer on every rank, ranks without any, and an expert in the middle that all tokens name."""
    moe = runs.problem(2, num_ranks=ranks, num_experts=ranks)
    tokens = [rank * 7 % 3 for rank in range(ranks)]
    make = hopper_case if runs is sm90_runs else random_case
    case = make(moe, tokens, 0, mask=0.1, target_expert=ranks // 2)
    assert max(int(idx.max()) for idx in case.topk_idx if idx.numel()) >= 32 and tokens.count(0) > ranks // 4
    found = Layer.of(artifact(runs.config(moe, num_sms=2, block_m=8 if runs is sm90_runs else 16)), case).check(case)
    assert [one.unequal for one in found] == [0] * ranks


@pytest.mark.sweep
def test_a_launch_per_stage() -> None:
    """The unfused layer's dispatch has the same sets of ranks."""
    moe = sm90_runs.problem(2, num_ranks=36, num_experts=36)
    case = hopper_case(moe, [rank * 7 % 3 for rank in range(36)], 0, mask=0.1, target_expert=18)
    found = unfused_layer(stages_of(sm90_runs.config(moe, num_sms=2, block_m=8)), case).check(case)
    assert [one.unequal for one in found] == [0] * 36


@pytest.mark.sweep
def test_ranks_take_turns() -> None:
    """Min-peeling over two sets: ranks with one, two or three tokens for the same expert lie in its pool as the reference says."""
    ranks = 36
    moe = sm90_runs.problem(3, num_ranks=ranks, num_experts=ranks, topk=1)
    tokens = [1 + rank % 3 for rank in range(ranks)]
    case = hopper_case(moe, tokens, 1, target_expert=ranks - 1)
    layer = Layer.of(artifact(sm90_runs.config(moe, num_sms=2, block_m=8)), case)
    assert [one.unequal for one in layer.check(case)] == [0] * ranks
    first = [one.sym.data_ptr() for one in layer.moe.ranks]
    places = layer.moe.ranks[-1].view("token_src_metadata")[: sum(tokens)].tolist()
    assert [first.index(start) for start in sources(first, places)] == [rank for rank, _ in dispatch_order(tokens)]


def sources(first: list[int], places: list[int]) -> list[int]:
    """Of addresses in the ranks' buffers, which begin at `first`, where theirs begins."""
    return [max(start for start in first if start <= place) for place in places]
