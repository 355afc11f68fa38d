"""Many launches of eight ranks on fewer GPUs (soak_ranks.py), in this process."""

from __future__ import annotations

import pytest
import torch

from gpu_options import GpuOptions
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Point
from record_file import RecordFile
from soak_ranks import soak

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def records(options: GpuOptions) -> RecordFile:
    """What the points give."""
    return RecordFile(options.soak_out, "soak_ranks")


def test_launches_on_equal_inputs_are_equal(point: Point, options: GpuOptions, devices: list[torch.device], records: RecordFile) -> None:
    found = soak(point, devices, ArtifactStore(options.kernels), options.soak_launches, options.soak_snapshots)
    torch.cuda.empty_cache()
    records.append({"name": point.name, "gpus": len(devices), **found})
    print(point.name, ", ".join(f"{key} {value}" for key, value in found["soak"].items()))
    assert (found["soak"]["mismatches"], found["soak"]["wrong_sets"]) == (0, 0), found["differences"][:4]
