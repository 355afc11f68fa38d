"""The expert-parallel kernels on simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...artifact.artifact import Artifact
from ...quant import ExpertWeights
from ...sim import Report
from ..buffers import Inputs, check_tensor
from ..simulated import SimulatedRanks, Tensors, check_rank_weights, memory_of, simulated_launch
from .buffers import EpBuffers, RowActivations
from .routing import RoutingTables, check_scatter_indices


class SimulatedEp(SimulatedRanks):
    """Ranks of an expert-parallel layer.

    dispatch  the compiled `dispatch_grouped_gemm`
    combine   the compiled `grouped_gemm_combine` of the same problem
    weights   per rank, the local experts'
    options   of `SimulatedRanks`: seed, race, watchdog_ns, progress

    Raises `ProblemError` for weights that do not fit.
    """

    def __init__(self, dispatch: Artifact, combine: Artifact, weights: Sequence[ExpertWeights], **options: Any) -> None:
        self.dispatch_kernel, self.combine_kernel, problem = dispatch, combine, dispatch.config.problem
        check_rank_weights(problem, weights)
        keeps = max(dispatch.config.keeps, combine.config.keeps)
        super().__init__(problem, [EpBuffers(problem, one, keeps=keeps) for one in weights], **options)

    def dispatch(
        self, inputs: Sequence[Inputs], launches: int = 1, *, scatter_indices: Sequence[torch.Tensor] | None = None
    ) -> tuple[list[torch.Tensor], Report]:
        """Linear1 of the rows of every rank, bf16 [pool rows, 2 intermediate], and what the simulator saw; `launches` of them without a
        pause, on the same inputs.  `scatter_indices` are those of every rank (`EpMoE`).  Raises `ProblemError` before anything runs when an
        input is malformed, `WatchdogError` when a wait exceeds its limit, and `SimError` for a fault or a deadlock."""
        self.store(inputs, scatter_indices)
        outs = [rank.new_rows() for rank in self.ranks]
        return outs, self.launch(self.dispatch_kernel, [{"out": out} for out in outs], launches=launches)

    def combine(self, acts: Sequence[RowActivations], tokens: Sequence[int], launches: int = 1) -> tuple[list[torch.Tensor], Report]:
        """y of every rank, bf16 [tokens of the rank, hidden], and what the simulator saw; the tables are those of the last dispatch.
        Raises as `dispatch` does."""
        self.problem.check_ranks("acts", acts)
        for rank, one in enumerate(acts):
            for name, (dtype, shape) in one.layout(self.problem).items():
                check_tensor(f"acts[{rank}].{name}", getattr(one, name), dtype, shape)
        ys = [torch.empty(self.problem.check_num_tokens(count), self.problem.hidden, dtype=torch.bfloat16) for count in tokens]
        given = [{"acts": one.values, "acts_sf": one.scales} for one in acts]
        return ys, self.launch(self.combine_kernel, [{"y": y} for y in ys], given, launches)

    def store(self, inputs: Sequence[Inputs], scatter_indices: Sequence[torch.Tensor] | None = None) -> None:
        """Tokens and routing tables of all ranks, for the launches that follow.  Raises `ProblemError`."""
        self.check_inputs(inputs)
        if scatter_indices is not None:
            self.problem.check_ranks("scatter_indices", scatter_indices)
        config = self.dispatch_kernel.config
        options = {"token_saving": config.token_saving, "token_sorting": config.token_sorting}
        tables = RoutingTables.of(self.problem, [one.topk_idx for one in inputs], **options)
        for rank, (buffers, one, made) in enumerate(zip(self.ranks, inputs, tables, strict=True)):
            buffers.store(one, made)
            if scatter_indices is not None:
                check_scatter_indices(self.problem, one.topk_idx, scatter_indices[rank])
                buffers.scatter(one.topk_idx, scatter_indices[rank])

    def launch(self, kernel: Artifact, made: Sequence[Tensors], given: Sequence[Tensors] | None = None, launches: int = 1) -> Report:
        """Launches a kernel on all ranks; by argument, `made` are the results of each rank, `given` what it reads besides weights."""
        memory, launched = memory_of({"peers": self.peers}, {}), []
        for rank, (buffers, own, read) in enumerate(zip(self.ranks, made, given or [{}] * len(made), strict=True)):
            written = {"sym": buffers.sym, "watchdog": buffers.watchdog}
            if kernel.config.trace:
                written["trace"] = buffers.trace_of(kernel.config)
            weights = {"fc1": buffers.weights.fc1, "fc2": buffers.weights.fc2, **buffers.weight_scales}
            memory_of({**weights, **read}, written, own, rank=rank, memory=memory)
            others = {name: one.data_ptr() for name, one in {**own, **read}.items()}
            if "y" in own:
                others["num_tokens"] = len(own["y"])
            arguments = buffers.arguments(kernel.config, self.peers.data_ptr(), rank, self.watchdog_ns, **others)
            launched.append(simulated_launch(kernel, kernel.kernel.parameters(kernel.config, arguments), rank))
        return self.run(memory, launched * launches)
