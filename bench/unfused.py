"""y of the fused kernel against y of the unfused layer, every element, to the bit; all ranks together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Layer, Point, name_of
from megamoe_dsl.bench.session import Session
from megamoe_dsl.bench.timing import synchronize
from megamoe_dsl.cases import TokenInputs, random_inputs
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.rank_kernel import RankKernel
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

SEED = 4000
UNFUSED = "unfused"
LAUNCHES = 100


def bind_stages(layer: Layer, store: ArtifactStore, config: MegaMoeConfig, symmetric: SymmetricBuffer, watchdog_ns: int) -> RankKernel:
    """The stages that compute what a kernel does, which has been bound before: they share the rank's copy of the weights."""
    stages = [store.load(one, any_sources=True) for one in stage_configs(config)]
    return RankKernel(stages, symmetric, layer.shared[config.problem.recipe], watchdog_ns)


@dataclass(frozen=True)
class Agreement:
    """Of so many launches of either.

    elements  of y on all ranks
    unequal   of them, those whose bits differ
    """

    launches: int
    elements: int
    unequal: int

    @property
    def passed(self) -> bool:
        """Whether there was anything to compare, and all of it is equal."""
        return self.unequal == 0 and self.launches > 0

    def record(self) -> dict[str, int | bool]:
        """For a results file."""
        return {**asdict(self), "passed": self.passed}


def bits_of(kernel: RankKernel, y: torch.Tensor) -> torch.Tensor:
    """What a launch leaves in a y full of NaN."""
    y.fill_(float("nan"))
    kernel(y)
    return y.view(torch.int16)


def compare_kernels(fused: RankKernel, unfused: RankKernel, batches: Callable[[int], TokenInputs], launches: int) -> Agreement:
    """Launches of both, one after the other on the same inputs, `batches` giving those of each number."""
    counted = torch.zeros(2, dtype=torch.int64, device="cuda")
    synchronize()
    for number in range(launches):
        inputs = batches(number)
        fused.buffers.store(Inputs(*inputs))
        one, other = (torch.empty(len(inputs.x), fused.config.problem.hidden, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        counted[0] += one.numel()
        counted[1] += (bits_of(fused, one) != bits_of(unfused, other)).sum()
    fused.synchronize()
    unfused.synchronize()
    if dist.is_initialized():
        dist.all_reduce(counted)
    return Agreement(launches, *counted.tolist())


def unequal_bits(one: torch.Tensor, other: torch.Tensor) -> int:
    """Elements of all ranks whose bits differ; all ranks together."""
    counted = (one.view(torch.int16) != other.view(torch.int16)).sum()
    if dist.is_initialized():
        dist.all_reduce(counted)
    return int(counted)


def mixed_batches(
    problem: Problem, tokens: int, remote: float | None, device: str | torch.device = "cuda", rank: int | None = None
) -> Callable[[int], TokenInputs]:
    """Batches of a rank, by default this process's, by number, each drawn when it is asked for: all slots in use, a third masked, all
    masked; most tokens for the same few experts; fewer tokens than the other ranks, and none at all."""
    if rank is None:
        rank = dist.get_rank() if dist.is_initialized() else 0

    def batch(number: int) -> TokenInputs:
        draw = random.Random(number)  # the same on all ranks
        counts = [tokens if number % 4 != 3 else draw.choice((0, draw.randint(0, tokens), tokens)) for _ in range(problem.num_ranks)]
        mask, skew = (0.0, 0.3, 0.0, 0.0, 1.0)[number % 5], number % 3 == 1
        away = None if skew or mask else remote
        return random_inputs(problem, rank, counts[rank], SEED + number, device, mask, skew, remote=away)

    return batch


def compare_point(
    session: Session, point: Point, layer: Layer, store: ArtifactStore, configs: Sequence[MegaMoeConfig]
) -> dict[str, Agreement]:
    """Of every kernel with the stages that compute what it does, by the names of `measure_point`; all ranks together."""
    symmetric, found = SymmetricBuffer.allocate(point.problem, configs[0].arch, **point.pool), {}
    for config in configs:
        kernel = layer.bind(store, config, symmetric, session.watchdog_ns)
        stages = bind_stages(layer, store, config, symmetric, session.watchdog_ns)
        batches = mixed_batches(point.problem, point.tokens, point.remote)
        found[name_of(config, point)] = compare_kernels(kernel, stages, batches, LAUNCHES)
    symmetric.close()
    return found
