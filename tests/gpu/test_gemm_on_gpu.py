"""GEMMs on a GPU: the simulator's bits (gemm_silicon.py)."""

from __future__ import annotations

import pytest

from gemm_runs import Run
from gemm_silicon import RUNS, differing
from gpu_options import GpuOptions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_bits_are_the_simulators(run: Run, options: GpuOptions) -> None:
    assert differing(options.kernels, run) == 0
