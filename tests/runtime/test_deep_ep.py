"""The layer whose tokens DeepEP moves, with a stand-in for its buffer that moves them over gloo as its API says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_nodes import call_of, join, joined, problem_of, run_all

from megamoe_dsl import MoE, Problem, ProblemError, quantize_e4m3_f32, random_weights
from sweep import rarely

CPU = torch.device("cpu")
CALLS = ("free", "limited", "no tokens of a node", "nobody")


class Buffer:
    """`deep_ep.Buffer` in low-latency mode, of a gloo group; rows that nobody has sent hold anything."""

    def __init__(self, group: Any, nvl_bytes: int, rdma_bytes: int, *, low_latency_mode: bool, num_qps_per_rank: int) -> None:
        assert nvl_bytes == 0 and rdma_bytes == 1 and low_latency_mode
        self.group, self.rank, self.local = group, dist.get_rank(group), num_qps_per_rank

    @staticmethod
    def get_low_latency_rdma_size_hint(tokens: int, hidden: int, ranks: int, experts: int) -> int:
        assert (tokens, hidden, experts) == (7, 256, 12) and ranks in (2, 3)
        return 1

    def all(self, one: Any) -> list[Any]:
        found = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(found, one, group=self.group)
        return found

    def low_latency_dispatch(self, x: torch.Tensor, idx: torch.Tensor, most: int, experts: int, *, use_fp8: bool) -> tuple[Any, ...]:
        assert idx.dtype == torch.int64
        room = most * dist.get_world_size(self.group)
        rows = torch.full((self.local, room, x.shape[1]), 1000.0, device=CPU).bfloat16()
        sources: list[list[tuple[int, int, int]]] = [[] for _ in range(self.local)]
        for rank, (tokens, chosen) in enumerate(self.all((x, idx))):
            for token, slot in (chosen >= 0).nonzero().tolist():
                expert = int(chosen[token, slot]) - self.rank * self.local
                if 0 <= expert < self.local:
                    rows[expert, len(sources[expert])] = tokens[token]
                    sources[expert].append((rank, token, slot))
        found: Any = rows
        counts = torch.tensor([len(one) for one in sources], dtype=torch.int32, device=CPU)
        if use_fp8:
            codes, scales = quantize_e4m3_f32(rows.flatten(0, 1))
            filled = (torch.arange(room, device=CPU) < counts[:, None])[:, :, None]
            by_column = torch.empty(self.local, scales.shape[1], room, device=CPU).mT  # as DeepEP's scales lie
            by_column.copy_(scales.view(self.local, room, -1).where(filled, float("nan")))
            found = codes.view(self.local, room, -1), by_column
        return found, counts, sources, None, None

    def low_latency_combine(self, y: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, handle: Any) -> tuple[Any, ...]:
        own = [(source, y[expert, row]) for expert, sources in enumerate(handle) for row, source in enumerate(sources)]
        total = torch.zeros(len(idx), y.shape[2], device=CPU)
        for (rank, token, slot), row in sorted((one for part in self.all(own) for one in part), key=lambda one: one[0]):
            if rank == self.rank:
                total[token] += row.float() * weights[token, slot]
        return total.bfloat16(), None, None


def run_rank(folder: Path, rank: int, ranks: int, recipe: str) -> None:
    join(folder, "group", rank, ranks)
    sys.modules["deep_ep"] = module = ModuleType("deep_ep")
    module.Buffer = Buffer  # type: ignore[attr-defined]
    problem = problem_of(ranks, recipe)
    layer = MoE(problem, random_weights(problem, rank, seed=0), launch="deep_ep")
    calls = [call_of(routing, rank, ranks, 1) for routing in CALLS]
    with torch.device("meta"):  # where a program's default device is does not matter
        found = [layer(*given) for given in calls]
    torch.save(found, folder / f"{rank}.pt")
    x, idx, weights = calls[0]
    with pytest.raises(ProblemError, match=r"x.dtype"):
        layer(x.float(), idx, weights)
    with pytest.raises(ProblemError, match=r"topk_weights.requires_grad"):
        layer(x, idx, weights.requires_grad_())
    dist.destroy_process_group()


@pytest.mark.parametrize(("ranks", "recipe"), [(2, "fp8xfp8"), rarely(3, "fp8xfp4")])
def test_y_is_the_sum_of_weighted_results(ranks: int, recipe: str, tmp_path: Path) -> None:
    run_all(run_rank, [(tmp_path, rank, ranks, recipe) for rank in range(ranks)])
    problem = problem_of(ranks, recipe)
    every = joined([random_weights(problem, rank, seed=0) for rank in range(ranks)])
    one = MoE(replace(problem, num_ranks=1, topk=1), every)
    for rank in range(ranks):
        for routing, y in zip(CALLS, torch.load(tmp_path / f"{rank}.pt"), strict=True):
            x, idx, weights = call_of(routing, rank, ranks, 1)
            total = torch.zeros(x.shape)
            for slot in sorted(range(problem.topk)):
                row = one(x, idx[:, slot : slot + 1].contiguous(), torch.ones(len(x), 1))
                total += row.float() * weights[:, slot : slot + 1]
            assert torch.equal(y, total.bfloat16())


def test_without_deep_ep_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deep_ep", None)
    problem = Problem(256, 128, 12, 3, max_tokens_per_rank=7, recipe="fp8xfp8")
    weights = random_weights(problem, 0, seed=0)
    with pytest.raises(ProblemError, match="launch = 'deep_ep': must be another: import of deep_ep halted"):
        MoE(problem, weights, launch="deep_ep")
    with pytest.raises(ProblemError, match="launch = 'deep_ep': must be another without weights"):
        MoE(problem, launch="deep_ep", device="cpu")
