"""Where two launches part (tests/gpu/snapshot.py): the stage, the expert, the row and the channels that were wrong."""

from __future__ import annotations

from typing import Any

import mega_moe_runs
import pytest
import sm90_runs
import torch

from megamoe_dsl.cases import Case, random_case
from ptx_of import artifact
from snapshot import STAGES, Difference, Snapshot
from sweep import sample

TOKENS, RANK, EXPERT = (11, 24), 1, 2  # EXPERT is local


@pytest.fixture(scope="module", params=[("sm_100a", "bf16"), ("sm_90a", "e4m3")], ids=" ".join)
def launches(request: pytest.FixtureRequest) -> tuple[Case, list[Snapshot], list[Snapshot]]:
    """Snapshots of all ranks after a launch and, with others in between, another on the same inputs."""
    arch, combine = request.param
    runs: Any = mega_moe_runs if arch == "sm_100a" else sm90_runs
    moe = runs.problem(combine=combine)
    case, other = (random_case(moe, tokens, 5, mask=0.2) for tokens in (TOKENS, (24, 3)))
    layer = mega_moe_runs.SimulatedMoE(artifact(runs.config(moe)), case.weights, race=False)
    taken = []
    for one in (case, other, case):
        layer(mega_moe_runs.inputs(one))
        taken.append([Snapshot.take(buffers) for buffers in layer.ranks])
    return case, taken[0], taken[2]


def received(case: Case) -> list[int]:
    experts = torch.cat([one.flatten() for one in case.topk_idx])
    local = case.problem.experts_per_rank
    return [int((experts == RANK * local + one).sum()) for one in range(local)]


@sample("sm_90a e4m3")
def test_equal_launches_do_not_differ_whatever_the_order_of_their_rows(launches: Any) -> None:
    case, before, after = launches
    for rank in range(2):
        assert after[rank].differences(before[rank], rank, case.topk_idx) == []
    assert any(not torch.equal(after[RANK].fields[name].view(torch.uint8), before[RANK].fields[name].view(torch.uint8)) for name in STAGES)


def copy(one: Snapshot) -> Snapshot:
    return Snapshot(one.config, {name: field.clone() for name, field in one.fields.items()})


@pytest.mark.parametrize(
    ("field", "blocks"), [("fc1_topk_weights", ()), ("fc1_sf", (0, 1)), ("fc1_acts", (1,)), ("fc2_sf", (0,)), ("fc2_acts", (0,))]
)
def test_a_wrong_row_is_named_with_its_stage_and_channels(launches: Any, field: str, blocks: tuple[int, ...]) -> None:
    case, before, after = launches
    counts, wrong = received(case), copy(after[RANK])
    row = wrong.rows(counts)[EXPERT][-1]
    wrong.row(field, row)[list(blocks) or 0] ^= 1
    (found,) = wrong.differences(before[RANK], RANK, case.topk_idx)
    assert (found.stage, found.field, found.blocks) == (STAGES[field], field, blocks)
    assert found.expert == RANK * case.problem.experts_per_rank + EXPERT
    assert wrong.row("token_src_metadata", row).view(torch.int64).item() == wrong.fields["token_src_metadata"][found.row]


def test_stages_come_in_the_order_of_a_launch(launches: Any) -> None:
    """A token that dispatch lost, and a result that is wrong."""
    case, before, after = launches
    wrong = copy(after[RANK])
    wrong.row("token_src_metadata", wrong.rows(received(case))[EXPERT][0]).zero_()
    slot, token = next((s, t) for t, s in (case.topk_idx[RANK] >= 0).nonzero().tolist())
    wrong.fields["combine"][slot, token, 130] += 1  # of E4M3 a code of block 1
    lost, result = wrong.differences(before[RANK], RANK, case.topk_idx)
    assert (lost.stage, lost.expert) == ("dispatch", RANK * case.problem.experts_per_rank + EXPERT)
    expert, row = int(case.topk_idx[RANK][token, slot]), slot * case.problem.max_tokens_per_rank + token
    assert (result.stage, result) == ("Linear2", Difference("combine", expert, row, (1,)))
