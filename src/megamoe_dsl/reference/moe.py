"""The whole layer over all ranks, joined from `routing` and `stages`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, input_layout, input_row, ue8m0_bytes
from megamoe_dsl.quant.formats import require_tensor
from megamoe_dsl.recipe import ExpertFactors
from megamoe_dsl.reference.activation import activate
from megamoe_dsl.reference.promoted import Accumulate
from megamoe_dsl.reference.routing import Routing, expert_rows, route
from megamoe_dsl.reference.stages import combine, linear1, linear2, requantize, travel


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer, one list entry per rank, all tensors on one device.

    problem       shapes and numerics
    x             float8_e4m3fn [T_r, H]; mxf4xmxf4: uint8 [T_r, H/2], packed E2M1
    x_sf          uint8 UE8M0 [T_r, H/32]; fp8xfp8: float32 [T_r, H/128]; nvfp4xnvfp4: float8_e4m3fn [T_r, H/16]
    topk_idx      int64 [T_r, topk], global experts, -1 masked
    topk_weights  float32 [T_r, topk]
    weights       `ExpertWeights` in checkpoint order (not transformed), rows [gate | up]
    """

    problem: Problem
    x: Sequence[torch.Tensor]
    x_sf: Sequence[torch.Tensor]
    topk_idx: Sequence[torch.Tensor]
    topk_weights: Sequence[torch.Tensor]
    weights: Sequence[ExpertWeights] = field(repr=False)

    def check(self) -> Routing:
        """The routing, when shapes and dtypes of all ranks fit `problem`.  Raises `ProblemError` on routing errors (see `route`) and on
        tensors that do not fit, naming field, value and what is allowed; ValueError from `ExpertWeights.validate`."""
        problem = self.problem
        for name in ("x", "x_sf", "topk_weights", "weights"):
            problem.check_ranks(name, getattr(self, name))
        routing = route(problem, self.topk_idx)
        sf_dtype, _ = input_layout(problem)
        dtype, width = input_row(problem)
        scales = problem.formats.activations.scales_of(problem.hidden)
        for rank, idx in enumerate(self.topk_idx):
            tokens = idx.shape[0]
            require_tensor(f"x[{rank}]", self.x[rank], dtype, (tokens, width))
            require_tensor(f"x_sf[{rank}]", ue8m0_bytes(self.x_sf[rank]), sf_dtype, (tokens, scales))
            require_tensor(f"topk_weights[{rank}]", self.topk_weights[rank], torch.float32, (tokens, problem.topk))
            self.weights[rank].validate(problem)
        return routing

    def jobs(self, routing: Routing) -> Iterator[ExpertInputs]:
        """The inputs of every expert that received tokens, in expert order, rows in pool order; tensors on the device of the weights."""
        first = torch.tensor([0] + [one.shape[0] for one in self.x], device="cpu").cumsum(0)
        # float8 tensors cannot be indexed on every torch build; their bytes can.
        all_x = torch.cat([one.view(torch.uint8) for one in self.x])
        all_sf, all_weights = torch.cat([ue8m0_bytes(one) for one in self.x_sf]), torch.cat(list(self.topk_weights))
        for expert in range(self.problem.num_experts):
            rows = expert_rows(routing, expert)
            if not len(rows):
                continue
            owner, local = divmod(expert, self.problem.experts_per_rank)
            source, slot = ((first[rows[:, 0]] + rows[:, 1]).to(all_x.device), rows[:, 2].to(all_x.device))
            weight = all_weights[source, slot]
            own = self.weights[owner].map(lambda tensor, local=local: tensor[local])  # type: ignore[misc]
            hidden_weight = None if self.problem.weigh_results else weight
            yield ExpertInputs(expert, rows, all_x[source].view(self.x[0].dtype), all_sf[source], weight, hidden_weight, own)


@dataclass(frozen=True)
class ExpertInputs:
    """Inputs of one expert: rows int64 [n, 3] (rank, token, slot), x, x_sf and top-k weight of each row, and the expert's weights.

    hidden_weight  factor of Linear2's input: the top-k weight, or None if combine applies it
    own            the expert's weights, without the dimension of experts
    """

    expert: int
    rows: torch.Tensor
    x: torch.Tensor
    x_sf: torch.Tensor
    weight: torch.Tensor
    hidden_weight: torch.Tensor | None
    own: ExpertWeights

    @property
    def hidden_factor(self) -> torch.Tensor | None:
        """The factor of activated gate and up; None unless NVFP4."""
        return None if self.own.factors is None else ExpertFactors(*self.own.factors).hidden


@dataclass(frozen=True)
class MoeResult:
    """Output and intermediates, one list entry per source rank; intermediates of masked slots are zero.  On the device of the inputs.

    y        bfloat16 [T_r, H]
    acts     float8_e4m3fn [T_r, topk, I], the requantized Linear1 activations; mxf4xmxf4: uint8 [T_r, topk, I/2]
    acts_sf  uint8 [T_r, topk, I/32]; fp8xfp8: float32 [T_r, topk, I/128]; nvfp4xnvfp4: float8_e4m3fn [T_r, topk, I/16]
    outputs  bfloat16 [topk, T_r, H], the values in the combine buffer; float32 if results travel as E4M3
    routing  which rows each expert received
    """

    y: list[torch.Tensor]
    acts: list[torch.Tensor]
    acts_sf: list[torch.Tensor]
    outputs: list[torch.Tensor]
    routing: Routing


def travel_dtype(problem: Problem) -> torch.dtype:
    return torch.float32 if problem.formats.combine.scale else torch.bfloat16


def mega_moe_stages(inputs: LayerInputs, accumulate: Accumulate = torch.float64) -> MoeResult:
    """The MoE layer of all ranks, bit by bit as `stages` defines it, with its intermediates; `accumulate` as in `stages.scaled_matmul`.
    Raises as `LayerInputs.check`, and ValueError when an activation becomes infinite."""
    problem, routing = inputs.problem, inputs.check()
    tokens, dtype, device = [idx.shape[0] for idx in inputs.topk_idx], inputs.x[0].dtype, inputs.x[0].device
    k, h, i = problem.topk, problem.hidden, problem.intermediate
    sf_dtype, _ = input_layout(problem)
    row_bytes = problem.formats.hidden.row_bytes(i)
    acts = [torch.zeros(t, k, row_bytes, dtype=torch.uint8, device=device) for t in tokens]
    acts_sf = [torch.zeros(t, k, problem.formats.hidden.scales_of(i), dtype=sf_dtype, device=device) for t in tokens]
    outputs = [torch.zeros(k, t, h, dtype=travel_dtype(problem), device=device) for t in tokens]
    for job in inputs.jobs(routing):
        gate_up = linear1(job.x, job.x_sf, job.own.fc1, job.own.fc1_sf, accumulate, job.own.fc1_bias, job.own.factors)
        values, values_sf = requantize(activate(problem, gate_up, job.hidden_weight), problem.recipe, job.hidden_factor)
        out = linear2(values, values_sf, job.own.fc2, job.own.fc2_sf, accumulate, job.own.fc2_bias, job.hidden_weight, job.own.factors)
        out = travel(out, problem.combine)
        for rank in job.rows[:, 0].unique().tolist():
            mine = job.rows[:, 0] == rank
            token, slot = job.rows[mine, 1].to(device), job.rows[mine, 2].to(device)
            chosen = mine.to(device)
            acts[rank][token, slot] = values.view(torch.uint8)[chosen]
            acts_sf[rank][token, slot] = values_sf[chosen]
            outputs[rank][slot, token] = out[chosen]
    weigh = inputs.topk_weights if problem.weigh_results else [None] * problem.num_ranks
    y = [combine(*one) for one in zip(outputs, inputs.topk_idx, weigh, strict=True)]
    return MoeResult(y, [a.view(dtype) for a in acts], acts_sf, outputs, routing)
