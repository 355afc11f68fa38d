"""Ranks of an expert-parallel layer in one process: buffers, three kernels and a stream each, on GPUs that they may share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gpu_options import share_of_sms
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.cases.routing import draw_experts, routing_bias
from megamoe_dsl.kernel_cases.halves import draw_activations
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig, RoutingTablesConfig
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.cuda_kernel import CudaKernel, encode_tensor_map
from megamoe_dsl.runtime.ep.buffers import EpBuffers, RowActivations
from megamoe_dsl.runtime.watchdog import naming_the_wait
from soak import LAUNCHES_IN_FLIGHT

RANKS = (1, 2, 4, 8)
TILES = {"block_m": 64, "block_n": 128, "task_tokens": 4, "cluster": 2}
SETS = 8
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "serial": ({}, {"interleaved": False}),
    "serial-in-parts": ({}, {"interleaved": False, "token_blocks": 4}),
    "tail": ({"tail_sms": 2}, {"scatter": False}),
    "alone": ({"cluster": 1}, {"cluster": 1}),
    "unsaved": ({"token_saving": False, "cluster": 1}, {"scatter": False, "cluster": 1}),
    "unsorted": ({"token_sorting": False, "block_wise": False}, {"interleaved": False, "token_blocks": 2, "task_tokens": 1}),
}
"""How tokens and results travel: fields of dispatch, and of combine."""
ROUTED = ("unsaved", "unsorted")
"""Ways in which other rows travel, or in another order, by the copies of the defaults, of gather and of serial scatter."""
FP8, BF16 = "fp8xfp8", "bf16xbf16"
CHECKS = (
    *((ranks, way, FP8) for ranks in RANKS for way in WAYS if ranks == 8 or way not in ROUTED),
    *((ranks, "defaults", BF16) for ranks in RANKS),
    *((ranks, way, BF16) for ranks in (2, 8) for way in ("serial-in-parts", "tail", "alone")),
)
"""What is launched many times."""
ONCE = (*((way, FP8, way != "defaults") for way in WAYS if way not in ROUTED), *(("defaults", BF16, exact) for exact in (True, False)))
"""Way, recipe and whether data are exact: what one GPU launches once, for sanitizers too."""


def small_problem(ranks: int, recipe: str = FP8) -> Problem:
    """Whose reference takes a moment; a rank has several experts, a warp more tokens than it sorts at a time."""
    return Problem(512, 256, num_experts=max(8, 2 * ranks), topk=3, num_ranks=ranks, max_tokens_per_rank=400, recipe=recipe)


def configs(problem: Problem, num_sms: int, way: str = "defaults", **fields: Any) -> list[Any]:
    """Of the three kernels, in the order of their launches."""
    dispatch, combine = ({"num_sms": num_sms, **fields, **of_way} for of_way in WAYS[way])
    first = DispatchGemmConfig(problem, **dispatch)
    return [RoutingTablesConfig.of(first), first, GemmCombineConfig(problem, **combine)]


def sms_of(sms: int, gpus: int, ranks: int) -> int:
    """Of each rank."""
    return sms if ranks <= gpus else share_of_sms(sms, gpus, ranks)


def small_configs(sms: int, gpus: int, ranks: int, way: str = "defaults", recipe: str = FP8) -> list[Any]:
    """Kernels of the checks on so many ranks."""
    return configs(small_problem(ranks, recipe), sms_of(sms, gpus, ranks), way, **TILES)


def routed_case(whole: Case, index: int) -> Case:
    """Set `index`: few, no or all tokens of each rank of a case, with experts of their own: uneven, dropped."""
    moe, generator = whole.problem, torch.Generator().manual_seed(index)
    bias = routing_bias(moe, generator, skew=index % 3 == 1)
    mask, most = (0.0, 0.3, 0.0, 1.0)[index % 4], moe.max_tokens_per_rank
    counts = [(most, int(torch.randint(most + 1, (), generator=generator)), 0)[(index * (rank + 1)) % 3] for rank in range(moe.num_ranks)]
    idx = [draw_experts(moe, count, bias, generator, mask) for count in counts]
    few = ([one[:count] for one, count in zip(field, counts, strict=True)] for field in (whole.x, whole.x_sf, whole.topk_weights))
    x, x_sf, weights = few
    return Case(moe, x, x_sf, idx, weights, whole.weights, whole.exact)


@lru_cache(2)
def whole_case(ranks: int, *, exact: bool = True, recipe: str = FP8) -> Case:
    """With all tokens of every rank, whatever way they travel."""
    moe = small_problem(ranks, recipe)
    return random_case(moe, [moe.max_tokens_per_rank] * ranks, ranks, exact=exact)


@dataclass
class EpRank:
    """One rank on its device, whose activations are given and not computed."""

    index: int
    buffers: EpBuffers
    kernels: list[CudaKernel]
    acts: RowActivations
    rows: torch.Tensor
    y: torch.Tensor
    stream: torch.cuda.Stream
    peers: torch.Tensor
    unequal: torch.Tensor

    @classmethod
    def of(cls, index: int, device: torch.device, weights: ExpertWeights, acts: RowActivations, kernels: list[CudaKernel]) -> EpRank:
        """`kernels` are those of `configs`, in this order."""
        with torch.cuda.device(device):
            moe = kernels[0].artifact.config.problem
            keeps = max(one.artifact.config.keeps for one in kernels[1:])  # the first makes tables
            buffers = EpBuffers(moe, weights.map(lambda one: one.to(device)), keeps=keeps)
            y = torch.empty(moe.max_tokens_per_rank, moe.hidden, dtype=torch.bfloat16, device=device)
            moved = RowActivations(acts.values.to(device), acts.scales.to(device))
            unequal = torch.zeros((), dtype=torch.int64, device=device)
            return cls(index, buffers, kernels, moved, buffers.new_rows(), y, torch.cuda.Stream(device), torch.empty(0), unequal)

    def launch(self, inputs: Inputs, watchdog_ns: int) -> None:
        """The three kernels in the rank's stream."""
        device, memory, count = self.rows.device, self.buffers, inputs.num_tokens
        peers, rank = self.peers.data_ptr(), self.index
        with torch.cuda.device(device), torch.cuda.stream(self.stream):
            memory.store(inputs)
            self.rows.fill_(float("nan"))
            self.y.fill_(float("nan"))
            tokens = {"num_tokens": count}
            own = tokens, {"out": self.rows.data_ptr()}, {**tokens, "y": self.y.data_ptr(), **self.acts.places}
            for kernel, others in zip(self.kernels, own, strict=True):
                config = kernel.artifact.config
                arguments = memory.arguments(config, peers, rank, watchdog_ns, **others)
                kernel(kernel.artifact.kernel.parameters(config, arguments, encode_tensor_map))

    def compare(self, wanted: Made) -> None:
        """Counts the elements of the last launch that differ, in the rank's stream."""
        with torch.cuda.device(self.rows.device), torch.cuda.stream(self.stream):
            for found, other in ((self.rows[wanted.places], wanted.rows), (self.y[: len(wanted.y)], wanted.y)):
                self.unequal += (found.view(torch.int16) != other.view(torch.int16)).sum()


@dataclass(frozen=True)
class Made:
    """What a launch has made of a rank: its rows, at `places` of the pool, and y."""

    places: torch.Tensor
    rows: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, rank: EpRank, tokens: int) -> Made:
        """The last launch, which has ended."""
        slices = rank.buffers.expert_slices()
        places = torch.cat([torch.arange(one.start, one.stop) for one in slices]).to(rank.rows.device)
        return cls(places, rank.rows[places].clone(), rank.y[:tokens].clone())


def ranks_of(case: Case, devices: Sequence[torch.device], store: ArtifactStore, wanted: Sequence[Any]) -> list[EpRank]:
    """All ranks of a case, on the devices in equal shares; `wanted` are the configurations of their kernels."""
    ranks = case.problem.num_ranks
    found = []
    for index in range(ranks):
        device = devices[index * min(len(devices), ranks) // ranks]
        with torch.cuda.device(device):
            kernels = [CudaKernel(store.load(one)) for one in wanted]
        found.append(EpRank.of(index, device, case.weights[index], draw_activations(case, index), kernels))
    addresses = [one.buffers.sym.data_ptr() for one in found]
    for one in found:
        one.peers = torch.tensor(addresses, dtype=torch.int64, device=one.rows.device)
    return found


def inputs_of(case: Case, ranks: Sequence[EpRank]) -> list[Inputs]:
    """On the devices of the ranks."""
    fields = zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)
    return [Inputs(*(one.to(rank.rows.device) for one in field)) for rank, field in zip(ranks, fields, strict=True)]


def synchronize(ranks: Sequence[EpRank]) -> None:
    """Waits for all ranks.  Raises `WatchdogError`."""
    with naming_the_wait(*(rank.buffers for rank in ranks)):
        for rank in ranks:
            rank.stream.synchronize()


def soak(
    ranks: Sequence[EpRank], sets: Sequence[Sequence[Inputs]], wanted: Sequence[Sequence[Made]], launches: int, watchdog_ns: int
) -> int:
    """Launches in a drawn order of sets, without a pause but for every `LAUNCHES_IN_FLIGHT`: how many elements differ from `wanted`."""
    order = torch.randint(len(sets), (launches,), generator=torch.Generator().manual_seed(7)).tolist()
    for number, index in enumerate(order, 1):
        for rank, one in zip(ranks, sets[index], strict=True):
            rank.launch(one, watchdog_ns)
        for rank, made in zip(ranks, wanted[index], strict=True):
            rank.compare(made)
        if number % LAUNCHES_IN_FLIGHT == 0:
            synchronize(ranks)
    synchronize(ranks)
    return sum(int(rank.unequal) for rank in ranks)
