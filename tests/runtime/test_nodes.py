"""The layer over nodes, on processes of the CPU over gloo: the bits of its sum over nodes, what it sends, and what a lost rank becomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forked import forked_process
from megamoe_dsl import ExpertWeights, MoE, Problem, ProblemError, WatchdogError, moe, random_weights
from megamoe_dsl.reference import travel
from megamoe_dsl.runtime.nodes import NodeLayer, Rails
from megamoe_dsl.shared_experts import SharedExperts
from sweep import rarely

PROBLEM = Problem(256, 128, 12, 3, max_tokens_per_rank=7, recipe="fp8xfp8")
ROUTINGS = ("free", "limited", "one node", "no tokens of a node", "nobody")
TIMEOUT_S, SHORT_S = 100, 4
"""Of collectives; the short one from when a rank is lost."""


def problem_of(ranks: int, recipe: str, combine: str = "bf16") -> Problem:
    return replace(PROBLEM, num_ranks=ranks, recipe=recipe, combine=combine)


def call_of(routing: str, rank: int, nodes: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A rank's tokens, some slots masked: of other numbers on each rank, to all nodes, two at most, or the last one."""
    generator = torch.Generator().manual_seed(100 * rank + len(routing))
    silent = routing == "nobody" or (routing == "no tokens of a node" and rank >= ranks)
    tokens, experts = 0 if silent else 3 + rank % 5, PROBLEM.num_experts
    scores = torch.rand(tokens, experts, generator=generator)
    of_node = scores.view(tokens, nodes, experts // nodes)
    if routing in ("limited", "one node"):
        keep = 2 if routing == "limited" else 1
        best = of_node.amax(dim=2).topk(keep, dim=1).indices if routing == "limited" else torch.full((tokens, 1), nodes - 1)
        of_node += torch.zeros(tokens, nodes).scatter(1, best, 2.0)[:, :, None]
    idx = scores.topk(PROBLEM.topk).indices
    idx[1:2, 0] = -1
    return torch.randn(tokens, PROBLEM.hidden, generator=generator).bfloat16(), idx, torch.rand(tokens, PROBLEM.topk, generator=generator)


@pytest.mark.parametrize(("hidden", "combine"), [(256, "bf16"), (288, "e4m3")])
def test_results_travel_as_they_are_or_in_blocks(hidden: int, combine: str) -> None:
    layer: Any = SimpleNamespace(problem=replace(PROBLEM, hidden=hidden, combine=combine))
    y = torch.ones(3, hidden).bfloat16()
    y[1, :128] = torch.nan  # nobody looks for it, which would wait for the device
    found = NodeLayer.as_received(layer, NodeLayer.as_sent(layer, y))
    assert (found[[0, 2]] == 1).all() and (found[1, 128:] == 1).all() and found[1, :128].isnan().all()


def run_all(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    """Processes of these arguments, all of which end well."""
    processes = [forked_process(target, one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


def join(folder: Path, name: str, rank: int, world: int) -> None:
    store = dist.FileStore(str(folder / name), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S))


def run_rank(folder: Path, rank: int, nodes: int, ranks: int, recipe: str, chunks: int, combine: str) -> None:
    """Results and counters of a rank for each routing."""
    join(folder, "group", rank, nodes * ranks)
    problem = problem_of(nodes * ranks, recipe, combine)
    layer, found = MoE(problem, random_weights(problem, rank, seed=0), domain=ranks, chunks=chunks), {}
    for routing in ROUTINGS:
        traffic = layer.traffic
        assert traffic is not None
        bounds = layer.experts.plan(call_of(routing, rank, nodes, ranks)[1], -1).bounds
        traffic.rows = traffic.dispatched = traffic.returned = traffic.counts = 0
        y = layer(*call_of(routing, rank, nodes, ranks))
        found[routing] = y, vars(traffic).copy(), bounds
        given = call_of(routing, rank, nodes, ranks)
        with torch.device("meta"):  # where a program's default device is does not matter
            assert torch.equal(layer(*given, num_tokens_bound=7), y) and traffic.counts == found[routing][1]["counts"]
            assert torch.equal(layer(*given), y)
    x, idx, weights = call_of("free", rank, nodes, ranks)
    if chunks == 1:
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager") if rank == 0 else layer  # importing the compiler is dear
        assert torch.equal(compiled(x, idx, weights), found["free"][0])
    else:
        with pytest.raises(ProblemError, match=r"x.requires_grad = True"):
            layer(x.requires_grad_(), idx, weights)
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def alone(problem: Problem) -> MoE:
    """The layer of all experts on one rank."""
    every = joined([random_weights(problem, rank, seed=0) for rank in range(problem.num_ranks)])
    return MoE(replace(problem, num_ranks=1, max_tokens_per_rank=64), every)


def joined(every: list[ExpertWeights]) -> ExpertWeights:
    """The experts of all ranks."""
    names = [name for name, tensor in vars(every[0]).items() if tensor is not None]
    return ExpertWeights(
        **{name: torch.cat([getattr(one, name).view(torch.uint8) for one in every]).view(getattr(every[0], name).dtype) for name in names}
    )


def sum_of_nodes(layer: MoE, call: tuple[torch.Tensor, ...], nodes: int) -> torch.Tensor:
    """What each node's experts give, rounded, added in FP32 in the order of nodes."""
    x, idx, weights = call
    total = torch.zeros(x.shape)
    for node in range(nodes):
        y = layer(x, idx.where(idx // (PROBLEM.num_experts // nodes) == node, -1), weights)
        total += travel(y, layer.problem.combine).float()
    return total.bfloat16()


@pytest.mark.parametrize(
    ("nodes", "ranks", "recipe", "chunks", "combine"),
    [(2, 2, "fp8xfp4", 2, "e4m3"), (3, 1, "bf16xbf16", 1, "bf16"), rarely(2, 3, "fp8xfp8", 3, "e4m3")],
)
def test_y_is_the_sum_over_nodes(nodes: int, ranks: int, recipe: str, chunks: int, combine: str, tmp_path: Path) -> None:
    """To the bit, close to the layer of one domain, and with the bytes that tokens and their nodes say."""
    run_all(run_rank, [(tmp_path, rank, nodes, ranks, recipe, chunks, combine) for rank in range(nodes * ranks)])
    problem = problem_of(nodes * ranks, recipe, combine)
    layer = alone(problem)
    for rank in range(nodes * ranks):
        found = torch.load(tmp_path / f"{rank}.pt")
        for routing in ROUTINGS:
            call, (y, traffic, bounds) = call_of(routing, rank, nodes, ranks), found[routing]
            expected, whole = sum_of_nodes(layer, call, nodes), layer(*call).float()
            assert torch.equal(y, expected)
            assert (y.float() - whole).norm() <= (0.01 if combine == "bf16" else 0.04) * whole.norm()
            away = sum(node != rank // ranks for _, node in pairs_of(call[1], nodes))
            assert traffic["rows"] == away and traffic["counts"] == 8 * chunks * nodes * (nodes - 1) * ranks
            beside = [call_of(routing, other, nodes, ranks)[1] for other in range(nodes * ranks)]
            needed = [[sum(node == rank // ranks for _, node in pairs_of(one, nodes)) for one in beside[r::ranks]] for r in range(ranks)]
            assert sum(bounds) >= max(map(sum, needed)) and bounds == torch.load(tmp_path / f"{rank // ranks * ranks}.pt")[routing][2]
            code = {"fp8xfp8": 256 + 4 * 2, "bf16xbf16": 2 * 256, "fp8xfp4": 256 + 8}[recipe]
            assert traffic["dispatched"] == away * (code + 8 * problem.topk)
            rail = [other for other in range(rank % ranks, nodes * ranks, ranks) if other != rank]
            wanted = [node for other in rail for _, node in pairs_of(call_of(routing, other, nodes, ranks)[1], nodes)]
            assert traffic["returned"] == wanted.count(rank // ranks) * (2 * 256 if combine == "bf16" else 256 + 2)


def pairs_of(idx: torch.Tensor, nodes: int) -> set[tuple[int, int]]:
    """Tokens and the nodes that they need."""
    node_experts = PROBLEM.num_experts // nodes
    return {(token, int(expert) // node_experts) for token, row in enumerate(idx) for expert in row if expert >= 0}


COUNT = 2
"""Shared experts of a rank."""


def run_shared(folder: Path, rank: int, recipe: str) -> None:
    """Two nodes of a rank, which has shared experts, given at first or loaded later."""
    join(folder, "group", rank, 2)
    problem = problem_of(2, recipe)
    weights = random_weights(SharedExperts(problem, COUNT).whole, rank, seed=0)
    layer = MoE(problem, weights, domain=1, shared_experts=COUNT)
    torch.save(layer(*call_of("free", rank, 2, 1)), folder / f"{rank}.pt")
    if problem.formats.scaled:
        later = MoE(problem, domain=1, shared_experts=COUNT, device="cpu")
        for index in range(problem.experts_per_rank + COUNT):
            later.load_expert(index, weights.expert(index))
        assert torch.equal(later(*call_of("free", rank, 2, 1)), layer(*call_of("free", rank, 2, 1)))
    with pytest.raises(ValueError, match=r"fc1.shape"):
        MoE(problem, random_weights(problem, rank, seed=0), domain=1, shared_experts=COUNT)
    dist.destroy_process_group()


@pytest.mark.parametrize("recipe", ["fp8xfp8", rarely("bf16xbf16")])
def test_shared_experts_are_added_once(recipe: str, tmp_path: Path) -> None:
    """A token's own rank adds them, after the nodes' results."""
    run_all(run_shared, [(tmp_path, rank, recipe) for rank in range(2)])
    problem = problem_of(2, recipe)
    every = [random_weights(SharedExperts(problem, COUNT).whole, rank, seed=0) for rank in range(2)]
    routed, shared = joined([one.map(lambda tensor: tensor[:-COUNT]) for one in every]), replace(problem, num_experts=COUNT, topk=COUNT)
    layer = MoE(replace(problem, num_ranks=1), routed)
    for rank, weights in enumerate(every):
        call = call_of("free", rank, 2, 1)
        total = torch.zeros(call[0].shape)
        for node in range(2):
            total += layer(call[0], call[1].where(call[1] // 6 == node, -1), call[2]).float()
        own = MoE(replace(shared, num_ranks=1), weights.map(lambda tensor: tensor[-COUNT:]))
        idx = torch.arange(COUNT).expand(len(call[0]), -1).contiguous()
        expected = (total + own(call[0], idx, torch.ones(idx.shape)).float()).bfloat16()
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), expected)


def run_training(folder: Path, rank: int, chunks: int, bound: int | None) -> None:
    """Gradients of a rank, of tokens, top-k weights and its experts; rank 1 asks for those of experts alone."""
    join(folder, "group", rank, 3)
    problem = problem_of(3, "bf16xbf16")
    weights = random_weights(problem, rank, seed=0)
    layer = MoE(problem, weights, domain=1, chunks=chunks)
    x, idx, topk_weights = call_of("no tokens of a node" if rank == 2 else "free", rank, 3, 1)
    plain = layer(x, idx, topk_weights)
    trained = weights.fc1, weights.fc2, *([] if rank == 1 else [topk_weights, x])
    for one in trained:
        one.requires_grad_()
    y = layer(x, idx, topk_weights, num_tokens_bound=bound)
    assert torch.equal(y, plain)
    (y.float() * slopes(rank, len(x))).sum().backward()
    traffic = layer.traffic
    assert traffic is not None and traffic.gradients > 0
    torch.save([one.grad for one in trained], folder / f"{rank}.pt")
    dist.destroy_process_group()


def slopes(rank: int, tokens: int) -> torch.Tensor:
    return torch.randn(tokens, PROBLEM.hidden, generator=torch.Generator().manual_seed(rank)).bfloat16().float()


@pytest.mark.parametrize(("chunks", "bound"), [rarely(1, None), (2, 7)])
def test_gradients_travel_back(chunks: int, bound: int | None, tmp_path: Path) -> None:
    """Of tokens the FP32 sum of each node's, to the bit; of weights, close to those of one rank with all experts and tokens."""
    run_all(run_training, [(tmp_path, rank, chunks, bound) for rank in range(3)])
    problem = problem_of(3, "bf16xbf16")
    whole = joined([random_weights(problem, rank, seed=0) for rank in range(3)])
    w1, w2 = whole.fc1.requires_grad_(), whole.fc2.requires_grad_()
    for rank in range(3):
        x, idx, topk_weights = call_of("no tokens of a node" if rank == 2 else "free", rank, 3, 1)
        x, dx, found = x.requires_grad_(), torch.zeros(x.shape), torch.load(tmp_path / f"{rank}.pt")
        for node in range(3):
            y = moe(x, w1, None, w2, None, idx.where(idx // 4 == node, -1), topk_weights.requires_grad_())
            (y.float() * slopes(rank, len(x))).sum().backward()
            assert x.grad is not None
            dx, x.grad = dx + x.grad.float(), None
        assert rank == 1 or (torch.equal(found[2], topk_weights.grad) and torch.equal(found[3], dx.bfloat16()))
    for rank in range(3):
        for own, all_ranks in zip(torch.load(tmp_path / f"{rank}.pt"), (w1.grad, w2.grad), strict=False):
            assert all_ranks is not None
            expected = all_ranks[4 * rank : 4 * rank + 4].float()
            assert (own.float() - expected).norm() <= 0.01 * expected.norm()


def run_domain(folder: Path, rank: int) -> None:
    """Two ranks of one host, which are one domain."""
    join(folder, "group", rank, 2)
    layer = MoE(problem_of(2, "fp8xfp8"), random_weights(problem_of(2, "fp8xfp8"), rank, seed=0))
    torch.save(layer(*call_of("free", rank, 2, 1)), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_ranks_of_a_host_are_a_domain(tmp_path: Path) -> None:
    run_all(run_domain, [(tmp_path, rank) for rank in range(2)])
    layer = alone(problem_of(2, "fp8xfp8"))
    for rank in range(2):
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), layer(*call_of("free", rank, 2, 1)))


def run_part(folder: Path, rank: int) -> None:
    """Ranks 1 and 2 of three are two nodes, without the third."""
    join(folder, "group", rank, 3)
    part = dist.new_group([1, 2])
    if rank:
        problem = problem_of(2, "fp8xfp8")
        layer = MoE(problem, random_weights(problem, rank - 1, seed=0), group=part, domain=1)
        x, idx, weights = call_of("free", rank - 1, 2, 1)
        torch.save(layer(x, idx, weights), folder / f"{rank - 1}.pt")
        with pytest.raises(ProblemError, match=r"num_tokens_bound = 1: must be None, or at least this rank's [34] tokens"):
            layer(x, idx, weights, num_tokens_bound=1)
        with pytest.raises(ProblemError, match="domain = 3: must be a divisor of the group's 2 ranks"):
            MoE(problem, random_weights(problem, rank - 1, seed=0), group=part, domain=3)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("combine", ["bf16", "e4m3"])
def test_only_results_in_bf16_have_a_backward_pass(combine: str) -> None:
    domain = SimpleNamespace(takes_scales=False, takes_bound=False, trained=(torch.ones(1),))
    rails = Rails(None, 0, 0, 2, 1, None, None, torch.device("cpu"))
    layer = NodeLayer(problem_of(2, "bf16xbf16", combine), domain, rails, 1)
    assert layer.trained == (domain.trained if combine == "bf16" else ())


def test_nodes_may_be_a_part_of_all_ranks(tmp_path: Path) -> None:
    run_all(run_part, [(tmp_path, rank) for rank in range(3)])
    layer = alone(problem_of(2, "fp8xfp8"))
    for rank in range(2):
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), sum_of_nodes(layer, call_of("free", rank, 2, 1), 2))


def test_who_is_lost_while_rows_travel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    naming: list[str] = []
    waits: list[list[str]] = []

    @contextmanager
    def name(rails: Rails, what: str) -> Iterator[None]:
        naming.append(what)
        yield
        naming.pop()

    work = SimpleNamespace(wait=lambda: waits.append(list(naming)))
    monkeypatch.setattr(Rails, "naming_lost_ranks", name)
    monkeypatch.setattr(dist, "all_to_all_single", lambda *given, **options: work)
    Rails(None, 0, 0, 2, 1, None, None, torch.device("cpu")).exchange("dispatched", torch.zeros(2, 8), [1, 1], [1, 1])()
    assert waits == [["rows"]]


def lose_a_rank(folder: Path, rank: int) -> None:
    """Rank 3 of four dies between two calls; the others name it, and go on as three nodes with the same weights."""
    join(folder, "group", rank, 4)
    problem = problem_of(4, "fp8xfp8")
    weights = random_weights(problem, rank, seed=0)
    layer = MoE(problem, weights, domain=2)
    layer(*call_of("free", rank, 2, 2))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SHORT_S))
    if rank == 3:
        os._exit(0)
    with pytest.raises(WatchdogError, match=rf"rank {rank}, .*; rank 3 did not report a wait"):
        layer(*call_of("free", rank, 2, 2))
    dist.destroy_process_group()
    join(folder, "survivors", rank, 3)
    left = replace(problem, num_ranks=3, num_experts=9)
    torch.save(MoE(left, weights, domain=1)(*survivors_call(rank)), folder / f"{rank}.pt")
    dist.destroy_process_group()


def survivors_call(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, idx, weights = call_of("free", rank, 2, 2)
    return x, idx.where(idx < 9, -1), weights


def test_a_lost_rank_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    run_all(lose_a_rank, [(tmp_path, rank) for rank in range(4)])
    problem = problem_of(4, "fp8xfp8")
    layer = alone(problem)
    for rank in range(3):
        x, idx, weights = survivors_call(rank)
        total = torch.zeros(x.shape)
        for node in range(3):
            total += layer(x, idx.where(idx // 3 == node, -1), weights).float()
        assert torch.equal(torch.load(tmp_path / f"{rank}.pt"), total.bfloat16())
