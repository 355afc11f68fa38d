"""Results that travel as E4M3, on simulated ranks of both architectures.  Race detector on; y of SM90 equals the reference to the bit, y of
SM100 too for exact data, and lies in its bound for random data."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType
from typing import Any

import mega_moe_runs
import pytest
import sm90_runs
from fault_runs import sign_of
from mega_moe_runs import Layer
from sm90_runs import hopper_case
from stage_runs import prove_equal

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M, PACKED_BLOCK_M
from megamoe_dsl.kernels.moe.sm100.choose import TIERS
from megamoe_dsl.problem import Problem
from ptx_of import artifact
from sweep import rarely, sample

OWN_MASK = re.compile(r"(shfl\.sync\.bfly\.b32 [^;]*, 31, )%r\d+;")


def problem(tokens: int = 24, runs: ModuleType = sm90_runs, **changes: Any) -> Problem:
    found: Problem = runs.problem(tokens, combine="e4m3", **changes)
    return found


@sample("128-random")
@pytest.mark.parametrize("exact", [rarely(True), False], ids=["exact", "random"])
@pytest.mark.parametrize("block_m", [m if m in (8, 128) else rarely(m) for m in BLOCK_M])
def test_every_tile(block_m: int, exact: bool) -> None:
    """An expert with a full and a partial block, others with a few tokens, masked slots; two blocks of hidden channels per warpgroup."""
    moe = problem(block_m + 5, hidden=512, intermediate=256, num_experts=4)
    kernel = sm90_runs.config(moe, block_m=block_m, lookahead=1, num_stages=3)
    full = block_m - 3
    sm90_runs.prove(kernel, [(full, 9), (3, full)] if exact else [(full, 9)], block_m, target_expert=1, mask=0.1, exact=exact)


@sample("tokens as columns")
@pytest.mark.parametrize(
    ("block_m", "counts"),
    [(128, [1, 33, 64, 65, 127]), (32, [1, 7, 8, 31])],
    ids=["tokens as rows", "tokens as columns"],
)
def test_edges_of_a_tile(block_m: int, counts: list[int]) -> None:
    """Half tiles and whole ones; half-warps whose token does not exist, while that of the other half does."""
    kernel = sm90_runs.config(problem(block_m, num_ranks=1, topk=1, num_experts=2), block_m=block_m, num_sms=2)
    sm90_runs.prove(kernel, [(n,) for n in counts], target_expert=0, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, rarely(128)])
def test_four_ranks_unequal_and_empty(block_m: int) -> None:
    """Tokens come from four ranks, one of which has none, and change between launches; then all ranks are empty, then all is masked."""
    moe = problem(16, num_ranks=4, num_experts=8, topk=3)
    kernel = sm90_runs.config(moe, num_sms=2, block_m=block_m)
    sm90_runs.prove(kernel, [(5, 0, 9, 2), (0, 0, 0, 0), (16, 11, 16, 16)], mask=0.1)
    sm90_runs.prove(kernel, [(5, 0, 9, 2)], mask=1.0)


@pytest.mark.parametrize("block_m", [rarely(8), rarely(128)])
def test_skewed_routing(block_m: int) -> None:
    sm90_runs.prove(sm90_runs.config(problem(40, num_experts=4), block_m=block_m), [(40, 17)], skew=True, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize(("block_m", "cluster"), [(8, 1), rarely(32, 1), rarely(128, 1), rarely(128, 2)])
def test_launches_without_a_pause(block_m: int, cluster: int) -> None:
    """Three launches in a stream: a rank begins the next one while its peer may still be busy with the last."""
    counts = [(20, 11), (3, 20), (0, 9)]
    moe = problem(20, num_experts=4, hidden=256 * cluster, intermediate=128 * cluster)
    case = hopper_case(moe, (20, 20), 1, exact=False)
    kernel = sm90_runs.config(moe, block_m=block_m, num_sms=2 if cluster == 2 else 3, cluster=cluster)
    layer = Layer.of(kernel, case, seed=1)
    ranks, report = layer.stream(case, counts)
    assert [str(finding) for finding in report.findings] == []
    assert [one.unequal for one in ranks] == [0] * 6 and [one.tokens for one in ranks] == [20, 11, 3, 20, 0, 9]
    layer.check_workspace()


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [m if m == 128 else rarely(m) for m in PACKED_BLOCK_M])
def test_packed_weights(block_m: int) -> None:
    moe = problem(block_m + 3, recipe="fp8xmxfp4", num_experts=4)
    sm90_runs.prove(sm90_runs.config(moe, block_m=block_m, num_sms=2), [(block_m + 3, 9)], exact=False, target_expert=1)


@pytest.mark.sweep
def test_a_pool_that_is_a_ring() -> None:
    moe = problem(140, num_ranks=1, num_experts=1, topk=1)
    sm90_runs.prove(sm90_runs.config(moe, pool_rows=128, block_m=16, num_sms=2), [(140,)], exact=False)


@pytest.mark.parametrize(("hidden", "topk"), [(1280, 2), rarely(1792, 6), rarely(512, 32)])
def test_pieces(hidden: int, topk: int) -> None:
    """Pieces of 256 channels; the scales of a row are no whole number of bulk copies."""
    moe = problem(9, num_ranks=1, topk=topk, num_experts=32, hidden=hidden)
    kernel = sm90_runs.config(moe, num_sms=2)
    assert kernel.smem.combine.pieces > 1
    sm90_runs.prove(kernel, [(9,)], mask=0.5, exact=False)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [16, rarely(128)])
def test_stages_give_the_same_bits(block_m: int) -> None:
    """A launch per stage: Linear2 leaves BF16, and what is sent is rounded there from memory, not from sums."""
    moe = problem(20, num_experts=4, hidden=512)
    prove_equal(sm90_runs.config(moe, block_m=block_m, num_sms=2), [hopper_case(moe, (20, 9), 1, mask=0.3, exact=False)])


@pytest.mark.sweep
def test_stages_of_sm100_give_the_same_bits() -> None:
    moe = problem(20, mega_moe_runs, num_experts=4, hidden=512)
    kernel = mega_moe_runs.config(moe, block_m=16, num_sms=2)
    prove_equal(kernel, [random_case(moe, (20, 9), 1, mask=0.3, exact=False)])


@sample("192")
@pytest.mark.parametrize("tier", [tier if tier.block_m in (16, 192) else rarely(tier) for tier in TIERS], ids=lambda tier: tier.block_m)
def test_every_tier_of_sm100(tier: Any) -> None:
    """Exact data, then random data: two blocks of hidden channels, the last pass of a tile partial."""
    moe = problem(tier.block_m + 3, mega_moe_runs, hidden=512, num_experts=4)
    kernel = mega_moe_runs.config(moe, block_m=tier.block_m, num_sms=2)
    mega_moe_runs.prove(kernel, [(tier.block_m + 3, 9)], target_expert=1, mask=0.1)
    mega_moe_runs.prove(kernel, [(9, 5)], exact=False)


@pytest.mark.sweep
def test_four_ranks_of_sm100() -> None:
    moe = problem(16, mega_moe_runs, num_ranks=4, num_experts=8, topk=3)
    mega_moe_runs.prove(mega_moe_runs.config(moe, num_sms=2), [(5, 0, 9, 2), (0, 0, 0, 0), (16, 11, 1, 16)], mask=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("block_m", [32, rarely(192)])
def test_packed_tokens_of_sm100(block_m: int) -> None:
    moe = problem(block_m + 3, mega_moe_runs, recipe="mxf4xmxf4", num_experts=4)
    mega_moe_runs.prove(mega_moe_runs.config(moe, block_m=block_m, num_sms=2), [(block_m + 3, 9)], target_expert=1)


def odd_tile(runs: ModuleType, block_m: int = 16) -> tuple[Artifact, Case]:
    """A kernel, and data whose last tile has an odd number of tokens."""
    moe = problem(9, runs, num_ranks=1, num_experts=2, topk=1)
    make = hopper_case if runs is sm90_runs else random_case
    return artifact(runs.config(moe, block_m=block_m, num_sms=2)), make(moe, (9,), 0, target_expert=0)


@sample("sm_90a")
@pytest.mark.parametrize("runs", [sm90_runs, mega_moe_runs], ids=["sm_90a", "sm_100a"])
def test_a_shuffle_of_the_whole_warp_is_reported(runs: ModuleType) -> None:
    """The 16 lanes of the last token would wait for the others, which have left because theirs does not exist."""
    compiled, case = odd_tile(runs)
    assert sign_of(compiled, case, [(9,)], 0) is None
    faulty, found = OWN_MASK.subn(r"\g<1>0xffffffff;", compiled.ptx)
    assert found % 4 == 0 and found > 0
    sign = sign_of(replace(compiled, ptx=faulty), case, [(9,)], 0)
    assert sign is not None and sign.startswith("deadlock") and "lanes of member mask 0xffffffff" in sign, sign


@pytest.mark.parametrize("block_m", [16, rarely(128)], ids=["tokens as columns", "tokens as rows"])
def test_a_scale_that_is_not_sent_is_noticed(block_m: int) -> None:
    compiled, case = odd_tile(sm90_runs, block_m)
    faulty, found = re.subn(r"st\.global\.b(8|16) [^;]*;", ";", compiled.ptx)
    assert found > 0
    sign = sign_of(replace(compiled, ptx=faulty), case, [(9,)], 0)
    assert sign is not None and sign.split(":")[0] in ("wrong result", "simulator error"), sign
