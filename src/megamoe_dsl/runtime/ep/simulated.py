"""The expert-parallel kernels on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...artifact.artifact import Artifact
from ...kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from ...problem import ProblemError
from ...quant import ExpertWeights
from ...sim import GlobalMemory, Report, Simulator
from ..buffers import Inputs, check_weights
from ..simulated import CPU, WATCHDOG_NS, Tensors, memory_of, simulated_launch
from ..watchdog import naming_the_wait
from .buffers import Activation, EpBuffers, RowActivations
from .routing import RoutingTables, check_scatter_indices


class SimulatedEp:
    """Ranks of an expert-parallel layer; buffers persist over calls, as they do on GPUs.

    dispatch  the compiled `dispatch_grouped_gemm`
    combine   the compiled `grouped_gemm_combine` of the same problem
    weights   per rank, the local experts'
    seed, race, watchdog_ns, progress  as `SimulatedMoE`

    Raises `ProblemError` when an argument does not fit.
    """

    def __init__(
        self,
        dispatch: Artifact,
        combine: Artifact,
        weights: Sequence[ExpertWeights],
        *,
        seed: int = 0,
        race: bool = True,
        watchdog_ns: int = WATCHDOG_NS,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        for name, artifact, kind in (("dispatch", dispatch, DispatchGemmConfig), ("combine", combine, GemmCombineConfig)):
            if not isinstance(artifact.config, kind):
                raise ProblemError(name, type(artifact.config).__name__, f"an Artifact of a {kind.__name__}")
        self.dispatch_kernel, self.combine_kernel = dispatch, combine
        self.problem, self.watchdog_ns = dispatch.config.problem, watchdog_ns
        if combine.config.problem != self.problem:
            raise ProblemError("combine.config.problem", combine.config.problem, f"that of dispatch, {self.problem}")
        self.problem.check_ranks("weights", weights)
        for one in weights:
            check_weights(self.problem, one)
        keeps = max(dispatch.config.keeps, combine.config.keeps)
        self.ranks = [EpBuffers(self.problem, one, keeps=keeps) for one in weights]
        self.peers = torch.tensor([rank.sym.data_ptr() for rank in self.ranks], dtype=torch.int64, device=CPU)
        self.simulator = Simulator(None, GlobalMemory(), seed=seed, race=race, progress=progress)

    def dispatch(
        self, inputs: Sequence[Inputs], launches: int = 1, *, scatter_indices: Sequence[torch.Tensor] | None = None
    ) -> tuple[list[torch.Tensor], Report]:
        """Linear1 of the rows of every rank, bf16 [pool rows, 2 intermediate], and what the simulator saw; `launches` of them without a
        pause, on the same inputs.  `scatter_indices` are those of every rank (`EpMoE`).  Raises `ProblemError` before anything runs when an
        input is malformed, `WatchdogError` when a wait exceeds its limit, and `SimError` for a fault or a deadlock."""
        self.store(inputs, scatter_indices)
        outs = [rank.new_rows() for rank in self.ranks]
        return outs, self.run_dispatch(self.dispatch_kernel, outs, launches)

    def run_dispatch(
        self, kernel: Artifact, outs: list[torch.Tensor], launches: int = 1, *, made: Sequence[Tensors] = (), given: Sequence[Tensors] = ()
    ) -> Report:
        """Launches of such a kernel on the tables of every rank, into `outs`, and what else a rank's launch has made and was given."""
        none: list[Tensors] = [{}] * len(outs)
        own = [{"out": out, **one} for out, one in zip(outs, made or none, strict=True)]
        return self._run(kernel, own, given or none, launches)

    def combine(self, acts: Sequence[RowActivations], tokens: Sequence[int], launches: int = 1) -> tuple[list[torch.Tensor], Report]:
        """y of every rank, bf16 [tokens of the rank, hidden], and what the simulator saw; the tables are those of the last dispatch.
        Raises as `dispatch` does."""
        self.problem.check_ranks("acts", acts)
        for rank, one in enumerate(acts):
            one.check(self.problem, f"acts[{rank}].")
        return self.run_combine(self.combine_kernel, acts, tokens, launches)

    def run_combine(
        self, kernel: Artifact, acts: Sequence[RowActivations], tokens: Sequence[int], launches: int = 1
    ) -> tuple[list[torch.Tensor], Report]:
        """Launches of such a kernel on the tables of every rank: y of each, and what the simulator saw."""
        ys = [torch.empty(self.problem.check_num_tokens(count), self.problem.hidden, dtype=torch.bfloat16) for count in tokens]
        given = [{"acts": one.values, "acts_sf": one.scales} for one in acts]
        return ys, self._run(kernel, [{"y": y} for y in ys], given, launches)

    def __call__(self, inputs: Sequence[Inputs], activation: Activation) -> tuple[list[torch.Tensor], list[Report]]:
        """The layer: dispatch and Linear1, the activation of every rank's rows, Linear2 and combine.  y of every rank, and the reports."""
        rows, first = self.dispatch(inputs)
        acts = [RowActivations.of(activation(one), self.problem.formats.activations) for one in rows]
        y, second = self.combine(acts, [one.num_tokens for one in inputs])
        return y, [first, second]

    def store(self, inputs: Sequence[Inputs], scatter_indices: Sequence[torch.Tensor] | None = None) -> None:
        """Tokens and routing tables of all ranks, for the launches that follow.  Raises `ProblemError`."""
        self.problem.check_ranks("inputs", inputs)
        if scatter_indices is not None:
            self.problem.check_ranks("scatter_indices", scatter_indices)
        for rank, one in enumerate(inputs):
            one.check(self.problem, CPU, f"inputs[{rank}].")
        config = self.dispatch_kernel.config
        options = {"token_saving": config.token_saving, "token_sorting": config.token_sorting}
        tables = RoutingTables.of(self.problem, [one.topk_idx for one in inputs], **options)
        for rank, (buffers, one, made) in enumerate(zip(self.ranks, inputs, tables, strict=True)):
            buffers.store(one, made)
            if scatter_indices is not None:
                check_scatter_indices(self.problem, one.topk_idx, scatter_indices[rank])
                buffers.scatter(one.topk_idx, scatter_indices[rank])

    def _run(self, kernel: Artifact, made: Sequence[Tensors], given: Sequence[Tensors], launches: int) -> Report:
        """Launches on all ranks, with what each makes, by argument, and what it reads besides weights."""
        memory, launched = memory_of({"peers": self.peers}, {}), []
        for rank, (buffers, own, read) in enumerate(zip(self.ranks, made, given, strict=True)):
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
        self.simulator.memory = memory
        with naming_the_wait(*self.ranks):
            return self.simulator.run(launched * launches)
