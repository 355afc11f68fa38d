"""The points of the soak, fused and in a launch per stage, on eight ranks of fewer GPUs (unfused_ranks.py), in this process."""

from __future__ import annotations

import pytest
import torch

from gpu_options import GpuOptions
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Point
from record_file import RecordFile
from unfused_ranks import compare

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def records(options: GpuOptions) -> RecordFile:
    """What the points give."""
    return RecordFile(options.soak_out, "unfused_ranks")


def test_every_element_is_that_of_the_stages(point: Point, options: GpuOptions, devices: list[torch.device], records: RecordFile) -> None:
    found = compare(point, devices, ArtifactStore(options.kernels), options.unfused_launches)
    torch.cuda.empty_cache()
    records.append({"name": point.name, "gpus": len(devices), **found})
    agreement = found["unfused"]
    print(point.name, ", ".join(f"{key} {value:,}" for key, value in agreement.items()))
    assert agreement["passed"] and agreement["elements"] > 0
