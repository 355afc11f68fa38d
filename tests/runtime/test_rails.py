"""Groups of ranks of a layer over nodes, and the waits of their hosts, without any process beside this one."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl import Problem, ProblemError, WatchdogError, random_weights
from megamoe_dsl.runtime import nodes
from megamoe_dsl.runtime.moe_layer import split_shared
from megamoe_dsl.runtime.nodes import NodeLayer, Plan, Rails, Traffic, node_problem, rails_of
from megamoe_dsl.shared_experts import SharedExperts


class Group:
    """A process group with an NCCL backend."""

    group_name = "all"
    options = SimpleNamespace(_timeout=timedelta(seconds=0.2))

    def _get_backend(self, device: torch.device) -> Group:
        return self


@pytest.mark.parametrize(("nccl", "sms"), [(True, 16), (True, 0), (False, 16)])
def test_a_rank_is_of_its_node_and_of_its_rail(nccl: bool, sms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group of six among other ranks, two on a node; rows of a rail leave SMs to launches."""
    made: list[tuple[list[int], dict[str, Any]]] = []
    stand_ins = {
        "get_world_size": lambda group: 6,
        "get_rank": lambda group: 3,
        "get_process_group_ranks": lambda group: list(range(10, 16)),
        "new_group": lambda ranks, **options: made.append((ranks, options)) or f"group {len(made)}",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(dist, name, stand_in)
    monkeypatch.setattr(nodes, "is_nccl", lambda backend: nccl)
    nccl_options = SimpleNamespace(Options=lambda: SimpleNamespace(config=SimpleNamespace()))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl_options, raising=False)
    group, device = Group(), torch.device("cpu")
    rails = rails_of(group, 2, device, sms)
    assert (rails.node, rails.number, rails.nodes, rails.ranks, rails.rank) == (1, 1, 3, 2, 3)
    assert (rails.group, rails.within, rails.rail, rails.device) == (group, "group 1", "group 2", device)
    assert [ranks for ranks, _ in made] == [[12, 13], [11, 13, 15]]
    assert all(options["timeout"] == timedelta(seconds=0.2) and options["use_local_synchronization"] for _, options in made)
    limits = [options.get("pg_options") for _, options in made]
    if nccl and sms:
        assert limits[0] is None and (limits[1]._timeout, limits[1].config.max_ctas) == (timedelta(seconds=0.2), 16)
    else:
        assert limits == [None, None]
    assert rails_of(group, 2, device, sms) is rails and len(made) == 2
    assert rails_of(Group(), 2, device, sms) is not rails


def test_rows_to_other_nodes_are_counted() -> None:
    """Those of this node stay."""
    rails: Any = SimpleNamespace(node=1, traffic=Traffic(), exchange=lambda *given: given)
    rails.away = lambda counts: Rails.away(rails, counts)
    assert [Rails.away(rails, counts) for counts in ([3, 4, 5], [0, 7, 0], [0, 0, 0])] == [8, 0, 0]
    layer: Any = SimpleNamespace(rails=rails)
    tokens, sent = [torch.tensor([0]), torch.tensor([2, 1, 1])], torch.tensor([[1], [2], [3]], dtype=torch.uint8)
    plan = Plan(tokens, [[0, 1], [1, 2]], [[5, 6], [7, 8]], [0, 0])
    kind, rows, send, receive = NodeLayer.dispatch(layer, plan, sent, 1)  # type: ignore[misc]
    assert (kind, rows.flatten().tolist(), send, receive) == ("dispatched", [3, 2, 2], [1, 2], [7, 8])
    assert rails.traffic == Traffic(rows=1)


@pytest.mark.parametrize(("count", "given"), [(0, False), (2, False), (0, True), (2, True)])
def test_shared_experts_are_the_last_of_a_ranks(count: int, given: bool) -> None:
    problem = Problem(256, 128, 8, 2, recipe="fp8xfp8")
    weights = random_weights(problem if not count else replace(problem, num_experts=8 + count), 0, 0) if given else None
    own, beside = split_shared(SharedExperts(problem, count), weights)
    assert (own is not None, beside is not None) == (given, given and count > 0)
    if weights is not None and own is not None:
        assert torch.equal(own.fc2_sf, weights.fc2_sf[:8]) and own.fc1.shape[0] == 8
        assert beside is None or torch.equal(beside.fc2_sf, weights.fc2_sf[8:])


def test_the_host_waits_as_long_as_a_collective_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NCCL one that lacks a rank never ends."""
    left, recorded = [3], []
    event = SimpleNamespace(record=lambda: recorded.append(True), query=lambda: not left or left.pop() == 0)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    group: Any = Group()
    rails = Rails(group, 1, 0, 2, 2, group, group, torch.device("cuda"))
    rails.wait()
    assert recorded == [True] and not left
    end = time.monotonic() + 5
    event.query = lambda: time.monotonic() > end
    asked: list[Any] = []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: "store")
    monkeypatch.setattr(nodes, "silent_ranks", lambda *given: asked.extend(given) or [3])
    message = r"rank 2, synchronize: not done in 0.2 s; rank 3 did not report a wait within 5.2 s"
    with pytest.raises(WatchdogError, match=message):
        NodeLayer.synchronize(SimpleNamespace(rails=rails))  # type: ignore[arg-type]
    assert asked == ["store", "megamoe_dsl nodes all", 2, 4, 5.2]
    Rails(group, 1, 0, 2, 2, group, group, torch.device("cpu")).wait()


def test_a_node_has_the_experts_of_a_token() -> None:
    problem = Problem(256, 128, 8, 3, 4, 7, recipe="fp8xfp8")
    with pytest.raises(ProblemError, match="topk = 3: must be at most the 2 experts of a node"):
        node_problem(problem, 1)
    for ranks, experts, tokens in ((2, 4, 14), (4, 8, 7)):
        found = node_problem(problem, ranks)
        assert (found.num_experts, found.num_ranks, found.max_tokens_per_rank) == (experts, ranks, tokens)


def test_experts_are_the_ranks_own_and_then_the_shared_ones() -> None:
    """Of two nodes of two ranks, which have three of twelve each."""
    problem, loaded = Problem(256, 128, 12, 3, 4, 7, recipe="fp8xfp8"), []
    rails = Rails(None, 0, 0, 2, 2, None, None, torch.device("cpu"))
    inner, shared = (
        SimpleNamespace(
            takes_scales=True, takes_bound=True, trained=(), load_expert=lambda index, weights, name=name: loaded.append((name, index))
        )
        for name in ("routed", "shared")
    )
    layer = NodeLayer(problem, inner, rails, 1, shared)
    for index in range(5):
        layer.load_expert(index, None)  # type: ignore[arg-type]
    assert loaded == [("routed", 0), ("routed", 1), ("routed", 2), ("shared", 0), ("shared", 1)]
