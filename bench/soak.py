"""Many consecutive launches on one buffer with changing tokens and kernels; every result is compared to the bit.

A token's result depends on nothing but its inputs and the weights, so each set of inputs has one right y: its first, which is checked
against the reference on sampled tokens, and, where asked for, against the unfused layer on every element.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.check import Check, Expectation, sample_rows
from megamoe_dsl.bench.point import Layer, Point
from megamoe_dsl.bench.results import POINT
from megamoe_dsl.bench.session import Session
from megamoe_dsl.bench.timing import synchronize
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.cases import random_inputs
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.runtime.buffers import Inputs
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from unfused import bind_stages, unequal_bits

SETS = 16
SAMPLES_PER_RANK = 2
LAUNCHES_IN_FLIGHT = 50


def token_counts(ranks: int, capacity: int) -> list[list[int]]:
    """Tokens of every rank in every set: full, none at all, none on some ranks, one, and random counts; the same on every rank."""
    draw = random.Random(ranks * 1_000_003 + capacity)
    fixed = [[capacity] * ranks, [0] * ranks, [capacity if r % 2 else 0 for r in range(ranks)], [int(r == 0) for r in range(ranks)]]
    return fixed + [[draw.choice((0, 1, draw.randint(0, capacity), capacity)) for _ in range(ranks)] for _ in range(SETS - len(fixed))]


def set_options(index: int) -> tuple[float, bool]:
    """Fraction of masked slots, and whether the routing is uneven, of a set."""
    return (0.0, 0.3, 0.0, 1.0)[index % 4] if index >= 4 else 0.0, index % 3 == 1


def soak_point(
    session: Session,
    point: Point,
    layer: Layer,
    store: ArtifactStore,
    configs: list[MegaMoeConfig],
    *,
    launches: int,
    unfused: bool = False,
) -> dict[str, Any]:
    """`launches` launches in a random order of sets and kernels; with `unfused` the right y of each set is the unfused layer's, every
    element.  All ranks together; the record is complete on rank 0."""
    problem, rank = point.problem, dist.get_rank()
    symmetric = SymmetricBuffer.allocate(problem, configs[0].arch, **point.pool)
    kernels = [layer.bind(store, config, symmetric, session.watchdog_ns) for config in configs]
    buffers = kernels[0].buffers
    stages = bind_stages(layer, store, configs[0], symmetric, session.watchdog_ns) if unfused else None
    unequal = 0
    counts = token_counts(problem.num_ranks, problem.max_tokens_per_rank)
    sets, wanted, checks = [], [], []
    for index, tokens in enumerate(counts):
        inputs = random_inputs(problem, rank, tokens[rank], 100 + index, "cuda", *set_options(index))
        buffers.load(Inputs(*inputs))
        y = torch.full((tokens[rank], problem.hidden), float("nan"), dtype=torch.bfloat16, device="cuda")
        expectation = Expectation(problem, inputs, sample_rows(tokens[rank], SAMPLES_PER_RANK), layer.all_weights)
        synchronize()
        kernels[0](y)
        kernels[0].synchronize()
        checks.append(expectation.check(y))
        if stages is not None:
            other = torch.full_like(y, float("nan"))
            stages(other)
            stages.synchronize()
            unequal += unequal_bits(y, other)
        sets.append(inputs)
        wanted.append(y)
    order = random.Random(7)
    mismatches = torch.zeros((), dtype=torch.int64, device="cuda")
    outputs = [torch.empty_like(y) for y in wanted]
    for launch in range(launches):
        index, kernel = order.randrange(len(sets)), kernels[order.randrange(len(kernels))]
        buffers.store(Inputs(*sets[index]))
        y = outputs[index]
        y.fill_(float("nan"))
        kernel(y)
        mismatches += (y.view(torch.int16) != wanted[index].view(torch.int16)).any()
        if launch % LAUNCHES_IN_FLIGHT == LAUNCHES_IN_FLIGHT - 1:
            kernel.synchronize()
    kernels[0].synchronize()
    dist.all_reduce(mismatches)
    symmetric.close()
    found = facts(launches, len(kernels), checks, int(mismatches))
    if stages is not None:
        found["unequal_to_unfused"] = unequal
    made_by = {variant_name(config): store.origin(config) for config in configs}
    return {"point": asdict(point), "made_by": made_by, "soak": found, "checks": [None if one is None else asdict(one) for one in checks]}


def facts(launches: int, kernels: int, checks: Sequence[Check | None], mismatches: int) -> dict[str, int]:
    """What a soak says; `checks` are of the first launches, a set each."""
    wrong = sum(one is not None and not one.passed for one in checks)
    return {"launches": launches, "kernels": kernels, "sets": len(checks), "mismatches": mismatches, "wrong_sets": wrong}


def soak_row(record: dict[str, Any]) -> str:
    """A soak as a line."""
    return f"{record['name']:{POINT}s} {', '.join(f'{name} {value}' for name, value in record['soak'].items())}"
