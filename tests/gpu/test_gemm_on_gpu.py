"""GEMMs on a GPU: the simulator's bits (gemm_silicon.py)."""

from __future__ import annotations

import pytest

from gather_runs import GatherRun
from gemm_runs import Run
from gemm_silicon import ALL_RUNS, differing
from gpu_options import GpuOptions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("run", ALL_RUNS, ids=lambda run: run.name)
def test_bits_are_the_simulators(run: Run | GatherRun, options: GpuOptions) -> None:
    assert differing(options.kernels, run) == 0
