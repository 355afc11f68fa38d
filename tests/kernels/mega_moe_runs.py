"""Runs of the mega kernel for tests: compiled once per configuration, on ranks whose buffers hold garbage wherever they may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import inverse_transform_weights
from megamoe_dsl.reference import linear1, route
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.simulated import RankComparison, SimulatedMoE, compare
from megamoe_dsl.sim import Report
from ptx_of import artifact

ZERO_AT_REST = ("tile_counter", "expert_send_count", "fc1_arrival_count", "fc2_arrival", "fc2_read_count")
COUNTERS = ("launch_epoch", "grid_arrivals", "rank_signal", "expert_recv_count_sum", "expert_counts_seen")


def problem(tokens: int = 24, **changes: Any) -> Problem:
    """A tiny layer over two ranks for up to `tokens` tokens each; `changes` replace fields."""
    fields = {"hidden": 256, "intermediate": 128, "num_experts": 8, "topk": 2, "num_ranks": 2, "max_tokens_per_rank": tokens}
    return Problem(**{**fields, **changes})


def config(moe: Problem, num_sms: int = 4, **overrides: Any) -> Sm100Config:
    return choose(moe, Target.typical("sm_100a", num_sms), moe.max_tokens_per_rank, **overrides)


def inputs(case: Case) -> list[Inputs]:
    return [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]


@dataclass
class Layer:
    """Simulated ranks whose buffers persist over launches, and what must hold between them."""

    moe: SimulatedMoE
    received: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, kernel: Sm100Config | Artifact, case: Case, **options: Any) -> Layer:
        """Ranks with the weights of `case`; `options` as `SimulatedMoE`."""
        compiled = kernel if isinstance(kernel, Artifact) else artifact(kernel)
        moe = SimulatedMoE(compiled, case.weights, **options)
        return cls(moe, [[0] * case.problem.experts_per_rank for _ in moe.ranks])

    def poison(self) -> None:
        """Everything but counters and inputs is NaN or out of range: a launch may not depend on what an earlier one left there."""
        for rank in self.moe.ranks:
            for placement in rank.region:
                name = placement.field.name
                if name not in ZERO_AT_REST and name not in COUNTERS:
                    rank.view(name).view(torch.uint8).fill_(0xFF)

    def launch(self, case: Case, seed: int | None = None) -> tuple[list[RankComparison], Report]:
        """One launch: y against the reference, and the report.  `seed` changes the schedule."""
        self.moe.load_weights(case.weights)
        self.poison()
        if seed is not None:
            self.moe.simulator.seed = seed
        y, report = self.moe(inputs(case))
        for rank, counts in enumerate(received(case)):
            self.received[rank] = [a + b for a, b in zip(self.received[rank], counts, strict=True)]
        return compare(case, y), report

    def check(self, case: Case, seed: int | None = None) -> list[RankComparison]:
        """A launch with the reference's result, no finding, and a workspace that is ready for the next one."""
        ranks, report = self.launch(case, seed)
        assert [str(finding) for finding in report.findings] == []
        assert [(one.rank, one.violations) for one in ranks] == [(rank, 0) for rank in range(len(ranks))]
        unexpected = [text for text in report.warnings if "tcgen05.ld of uninitialized TMEM" not in text]
        assert unexpected == []
        self.check_workspace()
        return ranks

    def retile(self, kernel: Sm100Config) -> None:
        """Another configuration of the same problem on the same buffers."""
        options = {"seed": self.moe.simulator.seed, "race": self.moe.simulator.race, "watchdog_ns": self.moe.watchdog_ns}
        old, weights = self.moe, [inverse_transform_weights(kernel.problem, kernel.arch, rank.weights) for rank in self.moe.ranks]
        self.moe = SimulatedMoE(artifact(kernel), weights, **options)
        for new, rank in zip(self.moe.ranks, old.ranks, strict=True):
            new.sym, new.stats = rank.sym, rank.stats
        self.moe.peers = old.peers

    def stream(self, case: Case, counts: Sequence[Sequence[int]]) -> tuple[list[RankComparison], Report]:
        """Launches with nothing between them: a rank begins its next one when its last has ended, whatever the other ranks do.

        Launch i has the first `counts[i][rank]` tokens of each rank.  Returns the comparisons of all launches, and one report.
        """
        self.moe.load_weights(case.weights)
        self.poison()
        launches, outputs, parts = [], [], []
        for tokens in counts:
            parts.append(first_tokens(case, tokens))
            outputs.append([torch.empty(max(1, n), case.problem.hidden, dtype=torch.bfloat16) for n in tokens])
        for rank, one in zip(self.moe.ranks, inputs(case), strict=True):
            rank.load(one)
        memory = self.moe.visible(outputs[0])
        for number, (part, out) in enumerate(zip(parts, outputs, strict=True)):
            if number:
                for rank, y in enumerate(out):
                    memory.add(y, name=f"y{number}", rank=rank, initialized=False)
            for rank, (one, y) in enumerate(zip(inputs(part), out, strict=True)):
                launches += self.moe.launches(rank, one.num_tokens, y)
            for rank, received_now in enumerate(received(part)):
                self.received[rank] = [a + b for a, b in zip(self.received[rank], received_now, strict=True)]
        self.moe.simulator.memory = memory
        report = self.moe.simulator.run(launches)
        ranks = []
        for part, out in zip(parts, outputs, strict=True):
            ranks += compare(part, [y[: len(x)] for y, x in zip(out, part.x, strict=True)])
        return ranks, report

    def check_workspace(self) -> None:
        """Zero where every launch starts from zero; the counters agree with the number of launches, the statistics with the routing."""
        problem, sms = self.moe.problem, self.moe.artifact.config.num_sms
        epochs = {int(rank.view("launch_epoch")) for rank in self.moe.ranks}
        assert len(epochs) == 1
        (epoch,) = epochs
        for rank, counts in zip(self.moe.ranks, self.received, strict=True):
            names = {placement.field.name for placement in rank.region}
            assert [name for name in ZERO_AT_REST if name in names and rank.view(name).any()] == []
            assert rank.view("grid_arrivals").tolist() == [epoch * sms] * 2
            assert rank.view("rank_signal").tolist() == [0, epoch * problem.num_ranks]
            for name in ("expert_recv_count_sum", "expert_counts_seen"):
                assert rank.view(name).tolist() == [(epoch * problem.num_ranks << 32) + count for count in counts]
            assert rank.stats.tolist() == counts
            assert rank.watchdog_message() is None


def first_tokens(case: Case, counts: Sequence[int]) -> Case:
    """The case with fewer tokens on each rank."""
    fields = ("x", "x_sf", "topk_idx", "topk_weights")
    return replace(case, **{name: [t[:n] for t, n in zip(getattr(case, name), counts, strict=True)] for name in fields})


def without_masks(case: Case) -> list[Inputs]:
    """The inputs of a case with indices that name no expert in place of -1; the low words of some do."""
    experts = case.problem.num_experts
    wild = torch.tensor([experts, (1 << 32) + 1, -2, 1 << 62, -(1 << 63), 99 * experts])
    found = []
    for one in inputs(case):
        idx = one.topk_idx.flatten().clone()
        masked = (idx < 0).nonzero().flatten()
        assert len(masked)
        idx[masked] = wild.repeat(len(masked))[: len(masked)]
        found.append(replace(one, topk_idx=idx.view_as(one.topk_idx)))
    return found


def received(case: Case) -> list[list[int]]:
    """Tokens that each local expert of each rank receives."""
    experts = torch.cat([idx.flatten() for idx in case.topk_idx])
    counts = torch.bincount(experts[experts >= 0], minlength=case.problem.num_experts)
    return counts.view(case.problem.num_ranks, -1).tolist()


def lowest_gate(case: Case) -> float:
    """Of all accumulators of Linear1 that go through SiLU."""
    jobs = case.jobs(route(case.problem, case.topk_idx))
    return min(float(linear1(job.x, job.x_sf, job.own.fc1, job.own.fc1_sf)[:, : case.problem.intermediate].min()) for job in jobs)


def prove(kernel: Sm100Config, launches: Iterable[Sequence[int]], seed: int = 0, **data: Any) -> Layer:
    """Launches with these token counts, one after another on the same buffers, each with its own data, weights and schedule.

    `data` as `cases.random_case`.
    """
    layer: Layer | None = None
    for number, tokens in enumerate(launches):
        case = random_case(kernel.problem, tokens, seed + number, **data)
        layer = layer or Layer.of(kernel, case)
        layer.check(case, seed + number)
        assert int(layer.moe.ranks[0].view("launch_epoch")) == number + 1
    assert layer is not None
    return layer


def prove_tile(moe: Problem, block_m: int) -> None:
    """Two ranks: exact data, an expert with a full and a partial block, rings that wrap; then random data within its bound."""
    kernel = config(moe, block_m=block_m, lookahead=1, num_stages=3)
    prove(kernel, [(block_m - 4, 9)], target_expert=1, mask=0.1)
    prove(kernel, [(7, block_m + 5)], skew=True, exact=False)
