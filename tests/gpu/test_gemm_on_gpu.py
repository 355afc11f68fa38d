"""GEMMs on a GPU: the simulator's bits, or within the reference's ends (gemm_silicon.py)."""

from __future__ import annotations

import pytest

from gemm_silicon import Check, checks, wrong
from gpu_options import GpuOptions
from script_options import read_options

pytestmark = pytest.mark.gpu


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cases of the GPUs that the number formats are for."""
    options = read_options(GpuOptions, metafunc.config.option)
    metafunc.parametrize("check", checks(options.arch, options.small), ids=lambda check: check.name)


def test_d_is_the_simulators(check: Check, options: GpuOptions) -> None:
    found, others = wrong(options.kernels, check)
    print(f"{check.name}: {others} elements have other bits than the simulator's, {found} are wrong")
    assert found == 0
