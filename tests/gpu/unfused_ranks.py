"""The fused kernel beside the layer in a launch per stage, on more ranks than GPUs: every element of y, to the bit.

Both are launched on the same inputs, one after the other, each in buffers of its own: stages need room for any routing, where the fused
kernel may use the rows of a ring again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.variant import variant_name
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.config import StageConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from ranks_on_gpus import configs_of, ranks_of, synchronize, synchronize_all
from unfused import Agreement, mixed_batches


def whole_pool_stages(fused: MegaMoeConfig) -> tuple[StageConfig, ...]:
    """Of the stages that compute what this kernel does."""
    return stage_configs(fused.replace(pool_rows=None))


def compare(point: Point, devices: Sequence[torch.device], store: ArtifactStore, launches: int) -> dict[str, Any]:
    """So many launches of a point's fused kernels, which take turns, each of inputs of its own.  Raises LookupError without kernels."""
    configs = configs_of(point, devices, store)
    stages = next((found for found in map(whole_pool_stages, configs) if all(store.path(one).exists() for one in found)), None)
    if stages is None:
        raise LookupError(f"{store.folder} has no stages for {point.name}, compiled from these sources")
    fused = ranks_of(point, devices, store, configs, launches)
    apart = ranks_of(replace(point, pool_rows=None), devices, store, stages, launches, like=fused)
    batches = [mixed_batches(point.problem, point.tokens, None, rank.device, rank.index) for rank in fused]
    elements = unequal = 0
    for number in range(launches):
        inputs = [batch(number) for batch in batches]
        one, other = (
            [torch.empty(len(given.x), point.problem.hidden, dtype=torch.bfloat16, device=given.x.device) for given in inputs]
            for _ in range(2)
        )
        synchronize_all(devices)
        for rank, given, y in zip(fused, inputs, one, strict=True):
            rank.launch(number % len(configs), given, y)
        synchronize(fused)  # together they would need twice the SMs
        for rank, given, y in zip(apart, inputs, other, strict=True):
            rank.launch_all(given, y)
        synchronize(apart)
        elements += sum(y.numel() for y in one)
        unequal += unequal_elements(one, other)
    agreement = Agreement(launches, elements, unequal)
    kernels = [variant_name(one) for one in configs]
    return {"point": asdict(point), "num_sms": configs[0].num_sms, "kernels": kernels, "unfused": agreement.record()}


def unequal_elements(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> int:
    """Of all ranks, those whose bits differ."""
    pairs = zip(one, other, strict=True)
    return sum(int((mine.view(torch.int16) != theirs.view(torch.int16)).sum()) for mine, theirs in pairs)
