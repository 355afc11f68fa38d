"""More ranks than GPUs: all ranks of a layer in one process, a stream and an equal share of its GPU's SMs each, over peer access.

Consecutive launches with changing token counts - full, none, none on some ranks, one, random; uneven and masked routing - are compared to
the bit with the first launch on the same inputs, and that one, on sampled tokens, with the reference.  All kernels in the folder for a
point take turns.  What it does not show is speed: ranks share GPUs.  It needs torch and cuda-bindings only.

Snapshots copy what every launch leaves in the pools, and say of one that differs which stage did first, in whose rows and channels.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Check, expected_results, sample_rows, some_tokens
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.cases import TokenInputs, random_inputs
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from ranks_on_gpus import Rank, configs_of, ranks_of, synchronize, synchronize_all
from snapshot import STAGES, Snapshot
from soak import LAUNCHES_IN_FLIGHT, SAMPLES_PER_RANK, SETS, facts, set_options, token_counts


def check_room(ranks: Sequence[Rank]) -> None:
    """Raises `MemoryError` unless the GPUs have room for the snapshots: of every set and every launch in flight."""
    bytes_each = sum(ranks[0].buffers[0].region[name].field.num_bytes for name in STAGES)
    sharing = [rank.device for rank in ranks].count(ranks[0].device)
    needed, free = bytes_each * sharing * (SETS + LAUNCHES_IN_FLIGHT), torch.cuda.mem_get_info(ranks[0].device)[0]
    if needed > free:
        raise MemoryError(f"--soak-snapshots: {needed >> 20} MiB per GPU are needed, {free >> 20} are free; take fewer tokens")


@dataclass(frozen=True)
class InputSet:
    """Inputs of all ranks, what their first launch gave, maybe with snapshots, and room for what later ones give."""

    inputs: list[TokenInputs]
    wanted: list[torch.Tensor]
    outputs: list[torch.Tensor]
    snapshots: list[Snapshot]

    @classmethod
    def first_launch(cls, problem: Problem, ranks: Sequence[Rank], index: int, tokens: Sequence[int], snapshots: bool) -> InputSet:
        """Set `index`, with these numbers of tokens."""
        inputs = [random_inputs(problem, rank.index, tokens[rank.index], 100 + index, rank.device, *set_options(index)) for rank in ranks]
        y = [torch.empty(n, problem.hidden, dtype=torch.bfloat16, device=rank.device) for n, rank in zip(tokens, ranks, strict=True)]
        synchronize_all([rank.device for rank in ranks])
        for rank, one, out in zip(ranks, inputs, y, strict=True):
            rank.launch(0, one, out)
        synchronize(ranks)
        left = [rank.keep(0, 0) for rank in ranks] if snapshots else []
        return cls(inputs, y, [torch.empty_like(one) for one in y], left)

    def part(self, ranks: Sequence[Rank], number: int) -> list[dict[str, Any]]:
        """Where launch `number`, whose inputs these were, differs from the first, on all ranks, by stage."""
        experts = [one[2] for one in self.inputs]
        found = [
            (one, rank.index)
            for rank, first in zip(ranks, self.snapshots, strict=True)
            for one in rank.snapshots[number % LAUNCHES_IN_FLIGHT].differences(first, rank.index, experts)
        ]
        found.sort(key=lambda pair: pair[0].order)
        return [{"launch": number, "rank": rank, "stage": one.stage, **asdict(one)} for one, rank in found]


def check_sets(problem: Problem, sets: Sequence[InputSet], weights: Sequence[ExpertWeights]) -> list[Check]:
    """The first launch of every set, on sampled tokens, against the reference; `weights` are all ranks'.

    The reference of all sets is computed at once: what takes its time is to read an expert's weights."""
    device = weights[0].fc1.device
    rows = [[sample_rows(len(y), SAMPLES_PER_RANK) for y in one.wanted] for one in sets]
    given = []
    for rank in range(problem.num_ranks):
        sampled = [some_tokens(one.inputs[rank], some[rank]) for one, some in zip(sets, rows, strict=True)]
        parts = [[tensor.to(device).view(torch.uint8) for tensor in field] for field in zip(*sampled, strict=True)]
        given.append([torch.cat(part).view(like.dtype) for part, like in zip(parts, sampled[0], strict=True)])
    whole = replace(problem, max_tokens_per_rank=max(len(x) for x, *_ in given))
    expected = expected_results(whole, given, weights)
    owner = torch.cat([torch.full((len(some[rank]),), index) for rank in range(problem.num_ranks) for index, some in enumerate(rows)])
    found = []
    for index, (one, some) in enumerate(zip(sets, rows, strict=True)):
        got = torch.cat([y[chosen].to(device) for y, chosen in zip(one.wanted, some, strict=True)])
        own = (owner == index).to(device)
        found.append(Check.of(got, *(one[own] for one in expected)))
    return found


def soak(point: Point, devices: Sequence[torch.device], store: ArtifactStore, launches: int, snapshots: bool = False) -> dict[str, Any]:
    """All launches of a point."""
    problem = point.problem
    configs = configs_of(point, devices, store)
    ranks = ranks_of(point, devices, store, configs, launches)
    if snapshots:
        check_room(ranks)
    weights = [
        ExpertWeights(*(getattr(rank.weights, name).to(devices[0]) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf"))) for rank in ranks
    ]
    counts = token_counts(point.ranks, problem.max_tokens_per_rank)
    sets = [InputSet.first_launch(problem, ranks, index, tokens, snapshots) for index, tokens in enumerate(counts)]
    checks = check_sets(problem, sets, weights)
    synchronize_all(devices)
    draw = random.Random(7)
    order = [(draw.randrange(len(sets)), draw.randrange(len(configs))) for _ in range(launches)]
    parted: list[dict[str, Any]] = []
    for start in range(0, launches, LAUNCHES_IN_FLIGHT):
        numbers = range(start, min(start + LAUNCHES_IN_FLIGHT, launches))
        for number in numbers:
            index, which = order[number]
            launch_all(ranks, sets[index], number, which, snapshots)
        synchronize(ranks)
        if snapshots:
            wrong = [number for number in numbers if any(rank.tokens[number] for rank in ranks)]
            parted += [one for number in wrong for one in sets[order[number][0]].part(ranks, number)]
    differences = [one for rank in ranks for one in rank.differences()]
    for one in differences:
        one["set"], which = order[one["launch"]]
        one["kernel"] = variant_name(configs[which])
        one["set_before"] = order[one["launch"] - 1][0] if one["launch"] else len(sets) - 1
    record = {"point": asdict(point), "num_sms": configs[0].num_sms, "soak": facts(launches, len(configs), checks, len(differences))}
    return {**record, "differences": differences, **({"parted": parted} if snapshots else {}), "checks": [asdict(one) for one in checks]}


def launch_all(ranks: Sequence[Rank], given: InputSet, number: int, which: int, snapshots: bool) -> None:
    """Launch `number` of all ranks, compared with the first on the same inputs."""
    for rank, inputs, out in zip(ranks, given.inputs, given.outputs, strict=True):
        rank.launch(which, inputs, out)
    for rank, out, wanted in zip(ranks, given.outputs, given.wanted, strict=True):
        rank.compare(number, out, wanted)
        if snapshots:
            rank.keep(number, which)
