"""Gradients across simulated ranks: both halves, transposed, of all ranks' tokens beside autograd of the whole layer in float64."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
import torch
from ep_runs import poison, problem

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.kernels.moe.halves.gemm_part import ACTIVATED, STORED
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, no_scales, unscaled_weights
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.ep.buffers import Activation, EpBuffers, RowActivations
from megamoe_dsl.runtime.ep.routing import RoutingTables
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.ep.training import Routed, train
from megamoe_dsl.runtime.simulated import Tensors
from megamoe_dsl.sim import Report
from ptx_of import artifact
from sweep import rarely

FIELDS = {"block_m": 128, "block_n": 64, "num_sms": 2, "task_tokens": 2}
PAIRS = {"block_n": 256, "arch_name": "sm_100a"}
TOKENS = (9, 6, 0, 5)
"""Of each rank; one has none."""
BOUND = 0.02


def layer(ranks: int) -> Problem:
    return problem(9, hidden=256, num_experts=4 * max(1, ranks // 2), topk=2, num_ranks=ranks, recipe="bf16xbf16")


def linear_in_both(rows: torch.Tensor) -> torch.Tensor:
    gate, up = rows.chunk(2, dim=1)
    return gate - 2 * up


def swiglu(rows: torch.Tensor) -> torch.Tensor:
    gate, up = rows.to(torch.promote_types(rows.dtype, torch.float32)).chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).to(rows.dtype)


class TrainedRanks(SimulatedEp):
    """Simulated ranks with the kernels of both passes, whose threads launch together; what the simulator saw is in `reports`."""

    def __init__(self, kinds: Sequence[Any], experts: Sequence[ExpertWeights]) -> None:
        dispatch, combine = kinds
        super().__init__(artifact(dispatch.replace(trains=True)), artifact(combine), experts)
        self.backward = [artifact(one.backward) for one in kinds]
        self.reports: list[Report] = []
        self.activates = dispatch.gate_up == ACTIVATED
        self.come, self.barrier = [({}, {}) for _ in experts], Barrier(len(experts), timeout=60)

    def launch_together(self, rank: int, kernel: Artifact, made: Tensors, given: Tensors | None = None) -> None:
        """A rank's part of a launch, which begins when all ranks have come; arguments as of `launch`."""
        self.come[rank] = dict(made), dict(given or {})
        if self.barrier.wait() == 0:
            self.reports.append(self.launch(kernel, *zip(*self.come, strict=True)))
        self.barrier.wait()


class TrainedRank:
    """One of these ranks, as `train` takes an `EpMoE`."""

    def __init__(self, ranks: TrainedRanks, rank: int) -> None:
        self.ranks, self.rank, self.memory, self.problem, self.activates = ranks, rank, ranks.ranks[rank], ranks.problem, ranks.activates
        self.activated = torch.empty(0)

    def everywhere(self, name: str) -> list[torch.Tensor]:
        return [rank.view(name) for rank in self.ranks.ranks]

    def dispatch_rows(self, routed: Routed, weights: torch.Tensor | None = None) -> torch.Tensor:
        width = self.problem.intermediate
        out = self.memory.new_rows(width if self.activates or weights is None else 2 * width).fill_(torch.nan)
        if weights is None:
            self.ranks.launch_together(self.rank, self.ranks.backward[0], {"out": out})
            return out
        made = {"out": out, "row_weights": weights.fill_(torch.nan)}
        if self.activates:
            self.activated = out
            made["preactivations"] = torch.empty(routed.in_use, 2 * width, dtype=torch.bfloat16)
        self.ranks.launch_together(self.rank, self.ranks.dispatch_kernel, made)
        return made["preactivations"] if self.activates else out

    def dispatch_gradients(self, gate_up: torch.Tensor, row_weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        width, count = self.problem.intermediate, len(gate_up)
        self.activated = self.memory.new_rows()
        made = {"out": self.activated, "weighted": self.memory.new_rows(width), "dots": torch.empty(width // 128, len(self.activated))}
        self.ranks.launch_together(self.rank, self.ranks.backward[0], made, {"gate_up": gate_up, "row_weights": row_weights})
        return self.activated[:count], made["weighted"][:count], made["dots"][:, :count].sum(0)

    def combine_rows(self, routed: Routed, rows: torch.Tensor, transposed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the pool that are nobody's are NaN."""
        if not self.activates:
            self.activated = self.memory.new_rows(rows.shape[1]).fill_(torch.nan)
            self.activated[routed.places] = rows
            assert torch.equal(rows[routed.pool][routed.places], rows)
        acts = RowActivations.of(self.activated, self.problem.formats.activations)
        y = torch.empty(len(routed.topk_idx), self.problem.hidden, dtype=torch.bfloat16)
        kernel = self.ranks.backward[1] if transposed else self.ranks.combine_kernel
        self.ranks.launch_together(self.rank, kernel, {"y": y}, {"acts": acts.values, "acts_sf": acts.scales})
        return y, self.activated[: routed.in_use]


class Step:
    """One step of all ranks: tokens with masked slots, experts that nobody chooses, gradients of y."""

    def __init__(self, moe: Problem, exact: bool) -> None:
        generator = torch.Generator().manual_seed(moe.num_ranks)

        def draw(*shape: int, filled: float) -> torch.Tensor:
            """Normal, or from -1 to 1 with so many that are not 0: all that follows then has few enough bits for BF16."""
            if not exact:
                return torch.randn(shape, generator=generator).bfloat16() / shape[-1] ** 0.5
            return torch.randint(-1, 2, shape, generator=generator).bfloat16() * (torch.rand(shape, generator=generator) < filled)

        experts, local = moe.num_experts, moe.experts_per_rank
        self.moe, self.x, self.dy, self.idx, self.weights, self.experts = moe, [], [], [], [], []
        for tokens in TOKENS[: moe.num_ranks]:
            self.x.append(draw(tokens, moe.hidden, filled=0.1))
            self.dy.append(draw(tokens, moe.hidden, filled=0.1))
            # All but the last expert: nobody chooses that.
            idx = torch.rand(tokens, experts - 1, generator=generator).topk(moe.topk).indices
            self.idx.append(idx.where(torch.rand(idx.shape, generator=generator) > 0.2, -1))
            weights = torch.rand(idx.shape, generator=generator)
            self.weights.append((weights > 0.5).float() + 1 if exact else weights)
            w1, w2 = (draw(local, *shape, filled=0.3) for shape in ((2 * moe.intermediate, moe.hidden), (moe.hidden, moe.intermediate)))
            self.experts.append(unscaled_weights(w1, w2))

    def leaves(self, dtype: torch.dtype) -> tuple[list[torch.Tensor], ...]:
        """x, top-k weights, W1 and W2 of each rank, with gradients."""
        float32 = torch.promote_types(dtype, torch.float32)
        of_experts = [one.fc1 for one in self.experts], [one.fc2 for one in self.experts]
        kinds = ((self.x, dtype), (self.weights, float32), *((one, dtype) for one in of_experts))
        return tuple([one.detach().clone().to(kind).requires_grad_() for one in some] for some, kind in kinds)

    def reference(self, activation: Activation) -> list[list[torch.Tensor]]:
        """y and the gradients in float64, of each rank."""
        leaves = x, weights, w1, w2 = self.leaves(torch.float64)
        first, second, ys = torch.cat(w1), torch.cat(w2), []
        for rows, idx, w in zip(x, self.idx, weights, strict=True):
            hidden = activation(torch.einsum("tksh,th->tks", first[idx], rows).flatten(0, 1)).view(*idx.shape, self.moe.intermediate)
            ys.append((torch.einsum("tkhi,tki->tkh", second[idx], hidden) * w.where(idx >= 0, 0.0)[:, :, None]).sum(1))
        sum((y * dy.double()).sum() for y, dy in zip(ys, self.dy, strict=True)).backward()
        return [ys, *self.gradients(leaves)]

    def simulated(self, activation: Activation | None, main_grads: list[Any] | None = None, **fields: Any) -> list[list[torch.Tensor]]:
        """The same by kernels, race detector on; all memory that they may not read is NaN."""
        tile = {**FIELDS, **{name: fields.pop(name) for name in PAIRS if name in fields}}
        fields |= {"gate_up": ACTIVATED if activation is None else STORED}
        kinds = [DispatchGemmConfig(self.moe, **tile, **fields), GemmCombineConfig(self.moe, **tile)]
        leaves = x, weights, w1, w2 = self.leaves(torch.bfloat16)
        experts = [ExpertWeights(one, no_scales(one), two, no_scales(two)) for one, two in zip(w1, w2, strict=True)]
        ep = TrainedRanks(kinds, experts)
        inputs = [Inputs(one, no_scales(one), *others) for one, *others in zip(x, self.idx, weights, strict=True)]
        with torch.no_grad():
            poison(ep)
            ep.store(inputs)

        def step(rank: int) -> torch.Tensor:
            y = train(TrainedRank(ep, rank), inputs[rank], activation, *(main_grads or [])[rank : rank + 1])
            (y.float() * self.dy[rank].float()).sum().backward()
            return y

        with ThreadPoolExecutor(len(experts)) as threads:
            ys = list(threads.map(step, range(len(experts))))
        assert [report.findings for report in ep.reports] == [[]] * 4
        return [ys, *self.gradients(leaves)]

    def gradients(self, leaves: Sequence[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        return [[torch.zeros_like(one) if one.grad is None else one.grad for one in kind] for kind in leaves]


@pytest.mark.parametrize("ranks", [rarely(1), 2, rarely(4)])
def test_exact_data_gives_the_gradients_of_float64(ranks: int) -> None:
    step = Step(layer(ranks), exact=True)
    for found, wanted in zip(step.simulated(linear_in_both), step.reference(linear_in_both), strict=True):
        assert all(torch.equal(one.double(), other) for one, other in zip(found, wanted, strict=True))
        assert any(one.abs().max() > 0 for one in wanted if len(one))


def test_pairs_give_the_gradients_of_float64() -> None:
    step = Step(problem(9, hidden=256, intermediate=256, num_experts=4, topk=2, recipe="bf16xbf16"), exact=True)
    for found, wanted in zip(step.simulated(linear_in_both, **PAIRS), step.reference(linear_in_both), strict=True):
        assert all(torch.equal(one.double(), other) for one, other in zip(found, wanted, strict=True))


def test_weight_gradients_are_added_to_totals() -> None:
    step = Step(layer(2), exact=True)
    totals = [tuple(torch.full(one.shape, 3.0) for one in (w.fc1, w.fc2)) for w in step.experts]
    *_, w1, w2 = step.simulated(linear_in_both, totals)
    assert not any(one.any() for one in (*w1, *w2))
    for (first, second), one, other in zip(totals, *step.reference(linear_in_both)[-2:], strict=True):
        assert torch.equal(first.double(), one + 3) and torch.equal(second.double(), other + 3)


def test_tables_of_a_call_outlive_the_next_one() -> None:
    """Layers take turns with a buffer, and a backward pass needs its own call's tables again."""
    step = Step(layer(1), exact=True)
    rank, (x,), (idx,), (weights,) = EpBuffers(step.moe, step.experts[0]), step.x, step.idx, step.weights
    (first,), (second,) = (RoutingTables.of(step.moe, [one]) for one in (idx, idx.flip(0)))
    rank.store(Inputs(x, no_scales(x), idx, weights), first)
    routed = Routed.of(rank, idx)
    rank.store(Inputs(x, no_scales(x), idx.flip(0), weights), second)
    assert not torch.equal(first.pair_rows, second.pair_rows)
    for name, table in vars(first).items():
        assert torch.equal(getattr(routed.tables, name), table), name


@pytest.mark.parametrize("fields", [{}, rarely({"token_saving": False}), rarely({"tail_sms": 1})])
def test_normal_data_is_near(fields: dict[str, Any]) -> None:
    """In the norm of each tensor; the same bits every time."""
    step = Step(layer(2), exact=False)
    several, again = step.simulated(swiglu, **fields), step.simulated(swiglu, **fields)
    for found, wanted, more in zip(several, step.reference(swiglu), again, strict=True):
        for one, other, same in zip(found, wanted, more, strict=True):
            assert (one.double() - other).norm() <= BOUND * other.norm()
            assert torch.equal(one, same)


@pytest.mark.parametrize("fields", [{"block_n": 256}, PAIRS])
def test_an_activation_of_the_kernels_is_near(fields: dict[str, Any]) -> None:
    """In the norm of each tensor; the same bits every time."""
    step = Step(layer(2), exact=False)
    several, again = (step.simulated(None, **fields) for _ in range(2))
    for found, wanted, more in zip(several, step.reference(swiglu), again, strict=True):
        for one, other, same in zip(found, wanted, more, strict=True):
            assert (one.double() - other).norm() <= BOUND * other.norm()
            assert torch.equal(one, same)


def test_what_has_no_backward_pass_is_refused() -> None:
    moe = layer(2)
    for refused, message in (
        (
            lambda: DispatchGemmConfig(problem(9), **FIELDS).backward,
            "transposed_b = True: must be False but for",
        ),
        (lambda: GemmCombineConfig(moe, **FIELDS, transposed=1), "transposed = 1: must be True or False"),
        (lambda: DispatchGemmConfig(moe, **FIELDS, trains=True).backward, "trains = True: must be False in a backward pass"),
        (lambda: DispatchGemmConfig(moe, gate_up="both"), "gate_up = 'both': must be one of stored, activated"),
        (lambda: DispatchGemmConfig(moe, **FIELDS, gate_up="activated"), "block_n = 64: must be 256 for gate and up"),
        (lambda: DispatchGemmConfig(moe, block_m=64, gate_up="activated"), "block_m = 64: must be 64 for each warpgroup"),
        (
            lambda: DispatchGemmConfig(problem(9), gate_up="activated"),
            "problem.recipe = 'fp8xfp8': must be bf16xbf16 where gate",
        ),
        (lambda: DispatchGemmConfig(replace(moe, activation_clamp=7.0)), "problem.activation_clamp = 7.0: must be None: the activation is"),
        (lambda: GemmCombineConfig(moe, **FIELDS, cluster=2, transposed=True), "cluster = 2: must be 1 in a backward pass"),
        (lambda: GemmCombineConfig(moe, **{**FIELDS, "block_m": 64}).backward, "block_n = 64: must be a multiple of 64 for each warpgroup"),
    ):
        with pytest.raises((ConfigError, ProblemError), match=message):
            refused()
