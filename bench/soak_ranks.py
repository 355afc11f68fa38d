"""More ranks than GPUs: all ranks of a layer in one process, a stream and an equal share of its GPU's SMs each, over peer access.

    python bench/compile_artifacts.py FOLDER --preset flash,pro --tokens 8,512 --ranks 8 --set num_sms=66     where the DSL is
    python bench/soak_ranks.py --artifacts FOLDER --preset flash,pro --tokens 8,512 --ranks 8 --launches 1000  e.g. on four GPUs

Consecutive launches with changing token counts - full, none, none on some ranks, one, random; uneven and masked routing - are compared to
the bit with the first launch on the same inputs, and that one, on sampled tokens, with the reference.  All kernels in the folder for a
point take turns.  What it does not show is speed: ranks share GPUs.  It needs torch and cuda-bindings only.

`--snapshots` copies what every launch leaves in the pools, and says of one that differs which stage did first, in whose rows and channels.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import result_file
from megamoe_dsl.bench.check import Check, Expected, sample_rows, some_tokens
from megamoe_dsl.bench.point import SEED, Point
from megamoe_dsl.bench.snapshot import STAGES, Snapshot
from megamoe_dsl.bench.soak import SAMPLES_PER_RANK, SETS, set_options, token_counts
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.cases import TokenInputs, random_inputs, random_weights
from megamoe_dsl.config_sm90 import Sm90Config
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.runtime.artifact_store import ArtifactStore
from megamoe_dsl.runtime.buffers import RankBuffers
from megamoe_dsl.runtime.cuda_kernel import CudaKernel, encode_tensor_map
from megamoe_dsl.runtime.watchdog import naming_the_wait

WATCHDOG_NS = 20 * 10**9
LAUNCHES_IN_FLIGHT = 50
BLOCK = 256  # channels that one L2 tile writes
CONCURRENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_MODULE_LOADING": "EAGER"}
"""Kernels that wait for each other need a hardware queue each, and nothing may be loaded while they wait: that would wait for them."""


@dataclass
class Rank:
    """One rank on its device: buffers of every kernel, the kernels, and a stream.

    tokens, blocks  of every launch: how many tokens differed, and in which blocks of 256 channels
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
    def of(cls, index: int, device: torch.device, store: ArtifactStore, configs: Sequence[Sm90Config], launches: int) -> Rank:
        with torch.cuda.device(device):
            weights = random_weights(configs[0].problem, index, SEED, device)
            first = RankBuffers(configs[0], weights, encode=encode_tensor_map)
            buffers = [first, *(first.rebound(config, first.sym) for config in configs[1:])]
            for one in buffers:
                one.maps  # noqa: B018  (made now: later it would wait for the device)
            kernels = [CudaKernel(store.load(config)) for config in configs]
            tokens = torch.zeros(launches, dtype=torch.int32, device=device)
            blocks = torch.zeros(launches, configs[0].problem.hidden // BLOCK, dtype=torch.bool, device=device)
            return cls(index, device, weights, buffers, kernels, torch.cuda.Stream(device), torch.empty(0), tokens, blocks)

    def launch(self, which: int, inputs: TokenInputs, y: torch.Tensor) -> None:
        """One launch in the rank's stream."""
        buffers = self.buffers[which]
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            for name, source in zip(("x", "x_sf", "topk_idx", "topk_weights"), inputs, strict=True):
                buffers.view(name)[: len(source)].view(torch.uint8).copy_(source.view(torch.uint8))
            y.fill_(float("nan"))
            address = y.data_ptr() if y.numel() else buffers.sym.data_ptr()
            self.kernels[which](buffers.arguments(self.peers.data_ptr(), address, len(y), self.index, WATCHDOG_NS))

    def compare(self, number: int, y: torch.Tensor, wanted: torch.Tensor) -> None:
        """What launch `number` gave, after it in the rank's stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            differs = (y.view(torch.int16) != wanted.view(torch.int16)).unflatten(1, (-1, BLOCK)).any(2)
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


def expectation(
    problem: Problem, inputs: Sequence[TokenInputs], rows: Sequence[torch.Tensor], weights: Sequence[ExpertWeights]
) -> Expected:
    """Of the sampled tokens of all ranks, on the weights' device."""
    device = weights[0].l1.device
    return Expected.of(
        problem, [[part.to(device) for part in some_tokens(one, some)] for one, some in zip(inputs, rows, strict=True)], weights
    )


def check_room(ranks: Sequence[Rank]) -> None:
    """Raises `MemoryError` unless the GPUs have room for the snapshots: of every set and every launch in flight."""
    bytes_each = sum(ranks[0].buffers[0].region[name].field.num_bytes for name in STAGES)
    sharing = [rank.device for rank in ranks].count(ranks[0].device)
    needed, free = bytes_each * sharing * (SETS + LAUNCHES_IN_FLIGHT), torch.cuda.mem_get_info(ranks[0].device)[0]
    if needed > free:
        raise MemoryError(f"--snapshots: {needed >> 20} MiB per GPU are needed, {free >> 20} are free; take fewer tokens")


def part(ranks: Sequence[Rank], first: Sequence[Snapshot], given: Sequence[TokenInputs], number: int) -> list[dict[str, Any]]:
    """Where launch `number` differs from the first on the same inputs, on all ranks, by stage."""
    experts = [one[2] for one in given]
    found = [
        {"launch": number, "rank": rank.index, **asdict(one)}
        for rank in ranks
        for one in rank.snapshots[number % LAUNCHES_IN_FLIGHT].differences(first[rank.index], rank.index, experts)
    ]
    return sorted(found, key=lambda one: list(STAGES).index(one["field"]))


def soak(point: Point, devices: Sequence[torch.device], store: ArtifactStore, launches: int, snapshots: bool = False) -> dict[str, Any]:
    """All launches of a point."""
    problem = point.problem
    num_sms = torch.cuda.get_device_properties(devices[0]).multi_processor_count * len(devices) // point.ranks
    configs = [one for one in store.configs(Sm90Config, problem) if one.num_sms == num_sms and not one.trace and store.path(one).exists()]
    if not configs:
        raise LookupError(f"{store.folder} has no kernel for {point.name} with num_sms = {num_sms}, compiled from these sources")
    ranks = [Rank.of(index, devices[index * len(devices) // point.ranks], store, configs, launches) for index in range(point.ranks)]
    addresses = [rank.buffers[0].sym.data_ptr() for rank in ranks]
    for rank in ranks:
        rank.peers = torch.tensor(addresses, dtype=torch.int64, device=rank.device)
    reference_weights = [
        ExpertWeights(*(getattr(rank.weights, name).to(devices[0]) for name in ("l1", "l1_sf", "l2", "l2_sf"))) for rank in ranks
    ]
    if snapshots:
        check_room(ranks)
    sets, wanted, checks, first, parted = [], [], [], [], []
    for index, tokens in enumerate(token_counts(point.ranks, problem.max_tokens_per_rank)):
        given = [random_inputs(problem, rank.index, tokens[rank.index], 100 + index, rank.device, *set_options(index)) for rank in ranks]
        y = [torch.empty(n, problem.hidden, dtype=torch.bfloat16, device=rank.device) for n, rank in zip(tokens, ranks, strict=True)]
        rows = [sample_rows(n, SAMPLES_PER_RANK) for n in tokens]
        expected = expectation(problem, given, rows, reference_weights)
        torch.cuda.synchronize(devices[0])
        synchronize_all(devices)
        for rank, inputs, out in zip(ranks, given, y, strict=True):
            rank.launch(0, inputs, out)
        synchronize(ranks)
        checks.append(expected.check(torch.cat([out[some].to(devices[0]) for out, some in zip(y, rows, strict=True)])))
        sets.append(given)
        wanted.append(y)
        first.append([rank.keep(0, 0) for rank in ranks] if snapshots else [])
    outputs = [[torch.empty_like(one) for one in y] for y in wanted]
    synchronize_all(devices)
    draw = random.Random(7)
    order = [(draw.randrange(len(sets)), draw.randrange(len(configs))) for _ in range(launches)]
    for number, (index, which) in enumerate(order):
        for rank, inputs, out in zip(ranks, sets[index], outputs[index], strict=True):
            rank.launch(which, inputs, out)
        for rank, out, right in zip(ranks, outputs[index], wanted[index], strict=True):
            rank.compare(number, out, right)
            if snapshots:
                rank.keep(number, which)
        if number % LAUNCHES_IN_FLIGHT == LAUNCHES_IN_FLIGHT - 1 or number == launches - 1:
            synchronize(ranks)
            for one in range(number - number % LAUNCHES_IN_FLIGHT, number + 1) if snapshots else ():
                if any(rank.tokens[one] for rank in ranks):
                    parted += part(ranks, first[order[one][0]], sets[order[one][0]], one)
    differences = [one for rank in ranks for one in rank.differences()]
    for one in differences:
        one["set"], which = order[one["launch"]]
        one["kernel"] = variant_name(configs[which])
        one["set_before"] = order[one["launch"] - 1][0] if one["launch"] else len(sets) - 1
    record = {"point": asdict(point), "num_sms": num_sms, "soak": facts(launches, configs, checks, differences)}
    return {**record, "differences": differences, **({"parted": parted} if snapshots else {}), "checks": [asdict(one) for one in checks]}


def facts(launches: int, configs: Sequence[Any], checks: Sequence[Check], differences: Sequence[Any]) -> dict[str, int]:
    """What `bench --soak` says, over all ranks."""
    return {
        "launches": launches,
        "kernels": len(configs),
        "sets": len(checks),
        "mismatches": len(differences),
        "wrong_sets": sum(not one.passed for one in checks),
    }


def synchronize_all(devices: Sequence[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


def main() -> None:
    os.environ.update(CONCURRENT)
    parser = argparse.ArgumentParser(description="Many launches of more ranks than GPUs, in one process.")
    parser.add_argument("--artifacts", type=Path, required=True, help="folder of compiled kernels")
    parser.add_argument("--preset", default="flash")
    parser.add_argument("--tokens", default="64", help="capacity per rank, separated by commas")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--experts-per-rank", type=int)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count(), help="a divisor of the ranks; all of this host's by default")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--snapshots", action="store_true", help="say where in a launch it went wrong; slower")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    if not 1 <= given.gpus <= torch.cuda.device_count() or given.ranks % given.gpus:
        parser.error(f"--gpus {given.gpus}: must be a divisor of --ranks {given.ranks}, at most {torch.cuda.device_count()}")
    devices = [torch.device("cuda", index) for index in range(given.gpus)]
    let_gpus_see_each_other(devices)
    records: list[dict[str, Any]] = []
    for name in given.preset.split(","):
        for tokens in given.tokens.split(","):
            point = Point(name, int(tokens), given.ranks, given.experts_per_rank)
            records.append(
                {
                    "name": point.name,
                    "gpus": given.gpus,
                    **soak(point, devices, ArtifactStore(given.artifacts), given.launches, given.snapshots),
                }
            )
            print(point.name, ", ".join(f"{key} {value}" for key, value in records[-1]["soak"].items()), flush=True)
            torch.cuda.empty_cache()
    print(f"wrote {result_file.save(given.out, 'soak_ranks', records)}")
    sys.exit(any(one["soak"]["mismatches"] or one["soak"]["wrong_sets"] for one in records))


if __name__ == "__main__":
    main()
