"""The simulator backend: compiled PTX on the CPU, of a layer on all ranks at once, or of a GEMM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch

from ..artifact.artifact import Artifact
from ..blocks.gemm.base_config import BaseGemmConfig
from ..cases import Case
from ..config_error import as_integer
from ..kernels.moe.unfused.config import LayerConfig
from ..kernels.moe.unfused.family import STAGES
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights, weight_names
from ..sim import GlobalMemory, Launch, Report, Simulator, load
from .buffers import Inputs, RankBuffers, check_device, check_output, check_weights
from .gemm_tensors import GemmTensors
from .watchdog import check_watchdog_ns, naming_the_wait

WATCHDOG_NS = 10**12
CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


class SimulatedRanks:
    """Ranks of a group in one simulator.  Buffers persist over calls, as they do on GPUs.

    ranks        buffers of each rank
    seed, race   scheduling seed and race detector of the simulator
    watchdog_ns  limit of every wait on global memory, in simulated nanoseconds
    progress     called about once a second with warp instructions and seconds so far
    """

    def __init__(
        self,
        problem: Problem,
        ranks: Sequence[Any],
        *,
        seed: SupportsIndex = 0,
        race: bool = True,
        watchdog_ns: SupportsIndex = WATCHDOG_NS,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        number = as_integer(seed)
        if number is None:
            raise ProblemError("seed", seed, "an integer")
        self.problem, self.ranks, self.watchdog_ns = problem, ranks, check_watchdog_ns(watchdog_ns)
        self.peers = torch.tensor([one.sym.data_ptr() for one in ranks], dtype=torch.int64, device=CPU)
        self.simulator = Simulator(None, GlobalMemory(), seed=number, race=race, progress=progress)

    def check_inputs(self, inputs: Sequence[Inputs]) -> None:
        self.problem.check_ranks("inputs", inputs)
        for rank, one in enumerate(inputs):
            one.check(self.problem, CPU, f"inputs[{rank}].")

    def run(self, memory: GlobalMemory, launches: Sequence[Launch]) -> Report:
        """What the simulator saw.  Raises `WatchdogError` when a wait exceeds its limit, and `SimError` for a fault or a deadlock."""
        self.simulator.memory = memory
        with naming_the_wait(*self.ranks):
            return self.simulator.run(launches)


def check_rank_weights(problem: Problem, weights: Sequence[ExpertWeights]) -> None:
    """Raises `ProblemError` or ValueError unless these are the weights of each rank, on the CPU."""
    problem.check_ranks("weights", weights)
    for rank, one in enumerate(weights):
        check_weights(problem, one)
        check_device(f"weights[{rank}]", one.fc1, CPU)


class SimulatedMoE(SimulatedRanks):
    """An expert-parallel MoE layer whose ranks are simulated.

    artifact     the compiled kernel of a MoE layer, or of every stage that `stage_configs` makes of one, in launch order: the race
                 detector watches across launches
    weights      per rank, the local experts' weights as `quant` makes them
    options      of `SimulatedRanks`: seed, race, watchdog_ns, progress

    Raises `ProblemError` or ValueError when an argument does not fit.
    """

    def __init__(self, artifact: Artifact | Sequence[Artifact], weights: Sequence[ExpertWeights], **options: Any) -> None:
        self.stages = list(artifact) if isinstance(artifact, Sequence) else [artifact]
        for one in self.stages:
            if not isinstance(one, Artifact) or not isinstance(one.config, LayerConfig):
                given = type(one.config if isinstance(one, Artifact) else one).__name__
                raise ProblemError("artifact", given, "an Artifact of a MoE kernel, as compile_kernel(config) makes one")
        if len(self.stages) > 1 and (names := [one.kernel.name for one in self.stages]) != (wanted := [stage.name for stage in STAGES]):
            raise ProblemError("stages", names, f"the kernels {wanted}")
        self.artifact = self.stages[0]
        check_rank_weights(self.artifact.config.problem, weights)
        super().__init__(self.artifact.config.problem, [RankBuffers(self.artifact.config, one) for one in weights], **options)
        self.results = [one.results for one in self.ranks]  # made before other stages share them
        self.buffers = [self.ranks, *([one.rebound(stage.config, one.sym) for one in self.ranks] for stage in self.stages[1:])]

    def __call__(self, inputs: Sequence[Inputs], y: Sequence[torch.Tensor] | None = None) -> tuple[list[torch.Tensor], Report]:
        """One launch on all ranks: (y per rank, bf16 [T, hidden]; what the simulator saw).  Raises `ProblemError` before anything runs when
        an input is malformed, `WatchdogError` when a wait exceeds its limit, and `SimError` for a fault or a deadlock."""
        self.check_inputs(inputs)
        if y is None:
            y = [torch.empty(one.num_tokens, self.problem.hidden, dtype=torch.bfloat16, device=CPU) for one in inputs]
        self.problem.check_ranks("y", y)
        for rank, (one, out) in enumerate(zip(inputs, y, strict=True)):
            check_output(f"y[{rank}]", out, (one.num_tokens, self.problem.hidden), CPU)
        for buffers, one in zip(self.ranks, inputs, strict=True):
            buffers.store(one)  # checked above, all ranks before the first
        # An empty tensor has no address; its kernel never writes it.
        outputs = [out if out.numel() else torch.empty(1, dtype=torch.bfloat16, device=CPU) for out in y]
        launches = [self.launches(rank, one.num_tokens, out) for rank, (one, out) in enumerate(zip(inputs, outputs, strict=True))]
        report = self.run(self.visible(outputs), [launch for rank in launches for launch in rank])
        return list(y), report

    def load_weights(self, weights: Sequence[ExpertWeights]) -> None:
        """Replaces the weights of all ranks, in place.  Raises `ProblemError` or ValueError when they do not fit."""
        check_rank_weights(self.problem, weights)
        for buffers, one in zip(self.ranks, weights, strict=True):
            buffers.load_weights(one)

    def visible(self, outputs: Sequence[torch.Tensor]) -> GlobalMemory:
        """All that the kernels may touch in one launch; reading y, or a result of a stage before it is written, is an error."""
        memory = memory_of({"peers": self.peers}, {})
        for index, (rank, out) in enumerate(zip(self.ranks, outputs, strict=True)):
            read = {name: getattr(rank.weights, name) for name in weight_names(self.problem)}
            written = {"sym": rank.sym, "watchdog": rank.watchdog, "stats": rank.stats}
            for stage, buffers in zip(self.stages, self.buffers, strict=True):
                read[f"maps of {stage.kernel.name}"] = buffers[index].maps
                written[f"trace of {stage.kernel.name}"] = buffers[index].trace
            memory_of(read, written, {"results": self.results[index], "y": out}, rank=index, memory=memory)
        return memory

    def launches(self, rank: int, num_tokens: int, y: torch.Tensor) -> list[Launch]:
        """The launches of a rank with `num_tokens` tokens in its symmetric buffer, into y."""
        places = self.peers.data_ptr(), y.data_ptr(), num_tokens, rank, self.watchdog_ns
        stages = zip(self.stages, self.buffers, strict=True)
        return [simulated_launch(stage, buffers[rank].arguments(*places), rank) for stage, buffers in stages]


def simulated_launch(artifact: Artifact, arguments: tuple[int | bytes, ...], rank: int = 0, *, early: bool = False) -> Launch:
    """A launch of a kernel with its parameters packed; `early` lets it begin before the launch before it on the stream has ended."""
    config = artifact.config
    return Launch(
        grid=(config.num_sms, 1, 1),
        block=(config.num_threads, 1, 1),
        cluster=(config.cluster, 1, 1),
        dynamic_smem=artifact.dynamic_smem,
        args=arguments,
        rank=rank,
        program=load(artifact.ptx),
        early=early,
    )


@dataclass(frozen=True)
class RankComparison:
    """y of one rank against the reference.

    elements    of y
    unequal     elements that differ from the reference's bits (0 and -0 are equal)
    violations  elements farther from it than the bound, NaN included; for an exact case the bound is 0
    max_error   largest |y - reference|
    worst       largest |y - reference| / bound; 0 when nothing differs, infinite where the bound is 0 and something differs
    """

    rank: int
    tokens: int
    elements: int
    unequal: int
    violations: int
    max_error: float
    worst: float

    @property
    def passed(self) -> bool:
        return self.violations == 0


def compare(case: Case, y: Sequence[torch.Tensor]) -> list[RankComparison]:
    """Every rank's y (bf16 [T_r, hidden]) against `case.reference()` and `case.bound()`.  Raises ValueError when a shape differs."""
    pairs = zip(y, case.reference().y, case.bound(), strict=True)
    return [_compare_rank(rank, got, want, limit) for rank, (got, want, limit) in enumerate(pairs)]


def _compare_rank(rank: int, got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> RankComparison:
    if got.shape != want.shape:
        raise ValueError(f"y[{rank}]: shape {tuple(got.shape)}, allowed: {tuple(want.shape)}")
    difference = (got.double() - want.double()).abs()
    ratio = torch.where(difference == 0, 0.0, difference / limit)
    return RankComparison(
        rank=rank,
        tokens=got.shape[0],
        elements=got.numel(),
        unequal=int((~(difference == 0)).sum()),
        violations=int((~(difference <= limit)).sum()),
        max_error=float(difference.max()) if got.numel() else 0.0,
        worst=float(ratio.max()) if got.numel() else 0.0,
    )


def simulate_gemm(
    artifact: Artifact,
    tensors: GemmTensors,
    *,
    launches: int = 1,
    seed: int = 0,
    race: bool = True,
    progress: Callable[[int, float], None] | None = None,
) -> Report:
    """Computes `tensors.d`, `launches` times without a pause between them; what the simulator saw.

    Raises `ProblemError` for another kernel, and `SimError` for a fault, such as an access beyond a tensor, or a deadlock.
    """
    config = artifact.config
    if not isinstance(config, BaseGemmConfig):
        raise ProblemError("artifact", type(config).__name__, "an Artifact of a GEMM")
    operands, counters = tensors.operands(config.problem), torch.zeros(2, dtype=torch.int32)
    memory = memory_of(operands, {**tensors.results(), "counters": counters})
    stream = []
    for number in range(launches):
        turn = number % 2 if config.prefetch_weights else 0  # one that begins to deal tiles early has another than the one before
        stream.append(launch_of(artifact, tensors.arguments(config.problem, operands, counters[turn:].data_ptr())))
    report = Simulator(None, memory, seed=seed, race=race, progress=progress).run(stream)
    assert not counters.any()
    return report


def memory_of(
    read: Tensors, written: Tensors, made: Tensors | None = None, *, rank: int = 0, memory: GlobalMemory | None = None
) -> GlobalMemory:
    """Memory of a rank's launches, added to `memory` if given: tensors that they may only read, that they may also write, and that they may
    read only after writing (`made`)."""
    memory = memory or GlobalMemory()
    for tensors, options in ((read, {"read_only": True}), (written, {}), (made or {}, {"initialized": False})):
        for name, tensor in tensors.items():
            memory.add(tensor, name=name, rank=rank, **options)
    return memory


def launch_of(artifact: Artifact, arguments: Mapping[str, int]) -> Launch:
    """A kernel's launch in a stream; with PDL it begins as early as on a GPU."""
    kernel = artifact.kernel
    return simulated_launch(artifact, kernel.parameters(artifact.config, arguments), early=kernel.early)
