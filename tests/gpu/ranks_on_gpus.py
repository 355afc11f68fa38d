"""Several ranks of a layer in one process: buffers, kernels and a stream each, on GPUs that they may share, over peer access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from gpu_options import SOAK_RANKS, share_of_sms
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.bench.variant import kind_of
from megamoe_dsl.cases import TokenInputs, random_weights
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.layouts.smem_plan import TILE_ROWS
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights, TransformedWeights
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from megamoe_dsl.runtime.cuda_kernel import CudaKernel, encode_tensor_map
from megamoe_dsl.runtime.watchdog import naming_the_wait
from snapshot import Snapshot
from soak import LAUNCHES_IN_FLIGHT

WATCHDOG_NS = 20 * 10**9
CONCURRENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""Kernels that wait for each other need a hardware queue each, and nothing may be loaded while they wait: that would wait for them."""


@dataclass
class Rank:
    """One rank on its device: buffers of every kernel, the kernels, and a stream.

    tokens, blocks  of every launch: how many tokens differed, and in which blocks of 256 channels, an Linear2 tile's
    snapshots       of the last launches, by number modulo LAUNCHES_IN_FLIGHT
    """

    index: int
    device: torch.device
    weights: ExpertWeights
    buffers: list[RankBuffers]
    kernels: list[CudaKernel]
    stream: torch.cuda.Stream
    peers: torch.Tensor
    tokens: torch.Tensor
    blocks: torch.Tensor
    snapshots: dict[int, Snapshot] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        index: int,
        device: torch.device,
        weights: ExpertWeights,
        ordered: TransformedWeights | None,
        store: ArtifactStore,
        configs: Sequence[MegaMoeConfig],
        launches: int,
    ) -> Rank:
        """`ordered` are its weights in kernel order, where another rank of this index has them already."""
        with torch.cuda.device(device):
            first = RankBuffers(configs[0], weights if ordered is None else ordered, encode=encode_tensor_map)
            first.results  # noqa: B018  (made now: what is there when it is rebound is shared)
            buffers = [first, *(first.rebound(config, first.sym) for config in configs[1:])]
            for one in buffers:
                one.maps  # noqa: B018  (made now: later it would wait for the device)
            kernels = [CudaKernel(store.load(config)) for config in configs]
            tokens = torch.zeros(launches, dtype=torch.int32, device=device)
            blocks = torch.zeros(launches, configs[0].problem.hidden // TILE_ROWS, dtype=torch.bool, device=device)
            return cls(index, device, weights, buffers, kernels, torch.cuda.Stream(device), torch.empty(0), tokens, blocks)

    def launch(self, which: int, inputs: TokenInputs, y: torch.Tensor) -> None:
        """One launch in the rank's stream."""
        self._launch([which], inputs, y)

    def launch_all(self, inputs: TokenInputs, y: torch.Tensor) -> None:
        """All kernels in the rank's stream, one after another: those that are stages of a layer."""
        self._launch(range(len(self.kernels)), inputs, y)

    def _launch(self, kernels: Sequence[int], inputs: TokenInputs, y: torch.Tensor) -> None:
        first = self.buffers[0]
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            first.store(Inputs(*inputs))
            y.fill_(float("nan"))
            address = y.data_ptr() if y.numel() else first.sym.data_ptr()
            given = [self.buffers[which].arguments(self.peers.data_ptr(), address, len(y), self.index, WATCHDOG_NS) for which in kernels]
            for which, arguments in zip(kernels, given, strict=True):
                self.kernels[which](arguments)

    def compare(self, number: int, y: torch.Tensor, wanted: torch.Tensor) -> None:
        """What launch `number` gave, after it in the rank's stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            differs = (y.view(torch.int16) != wanted.view(torch.int16)).unflatten(1, (-1, TILE_ROWS)).any(2)
            self.tokens[number] = differs.any(1).sum()
            self.blocks[number] = differs.any(0)

    def keep(self, number: int, which: int) -> Snapshot:
        """What launch `number` left, after it in the rank's stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            taken = self.snapshots[number % LAUNCHES_IN_FLIGHT] = Snapshot.take(self.buffers[which])
        return taken

    def differences(self) -> list[dict[str, Any]]:
        """Launches whose y differed."""
        found = self.tokens.nonzero().flatten().tolist()
        return [
            {"launch": n, "rank": self.index, "tokens": int(self.tokens[n]), "blocks": self.blocks[n].nonzero().flatten().tolist()}
            for n in found
        ]


def let_gpus_see_each_other(devices: Sequence[torch.device]) -> None:
    """torch enables peer access with the first copy."""
    for one in devices:
        for other in devices:
            if one != other:
                torch.zeros(1, device=one).to(other)


def synchronize(ranks: Sequence[Rank]) -> None:
    with naming_the_wait(*(rank.buffers[0] for rank in ranks)):
        for rank in ranks:
            rank.stream.synchronize()


@lru_cache(SOAK_RANKS)
def weights_of(layer: Problem, index: int, device: torch.device) -> ExpertWeights:
    """Of a rank: points of one layer that follow one another share them."""
    return random_weights(layer, index, SEED, device)


def configs_of(point: Point, devices: Sequence[torch.device], store: ArtifactStore) -> list[MegaMoeConfig]:
    """Of the fused kernels of a point that are there, for a rank's share of the devices' SMs.  Raises LookupError without any."""
    num_sms = share_of_sms(torch.cuda.get_device_properties(devices[0]).multi_processor_count, len(devices), point.ranks)
    kind = kind_of(point.recipe)
    there = [one for one in store.configs(kind, point.problem) if type(one) is kind and one.num_sms == num_sms and not one.trace]
    found = [one for one in there if store.path(one).exists()]
    if not found:
        raise LookupError(f"{store.folder} has no kernel for {point.name} with num_sms = {num_sms}, compiled from these sources")
    return found


def ranks_of(
    point: Point,
    devices: Sequence[torch.device],
    store: ArtifactStore,
    configs: Sequence[MegaMoeConfig],
    launches: int,
    like: Sequence[Rank] | None = None,
) -> list[Rank]:
    """All ranks, on the devices in equal shares, each with the addresses of all; with the weights of the ranks `like`, if there are any."""
    ranks = []
    for index in range(point.ranks):
        device = devices[index * len(devices) // point.ranks]
        weights, ordered = weights_of(point.layer, index, device), None if like is None else like[index].buffers[0].weights
        ranks.append(Rank.of(index, device, weights, ordered, store, configs, launches))
    addresses = [rank.buffers[0].sym.data_ptr() for rank in ranks]
    for rank in ranks:
        rank.peers = torch.tensor(addresses, dtype=torch.int64, device=rank.device)
    return ranks


def synchronize_all(devices: Sequence[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)
