"""The GPU's y against the simulator's (silicon.py)."""

from __future__ import annotations

import pytest
import torch

from gpu_options import GpuOptions
from megamoe_dsl.bench.host import Host
from outcomes import Outcomes
from script_options import read_options
from silicon import Verdict, judge, points, read, run_on_one_gpu, work

pytestmark = pytest.mark.gpu
LIMIT_S = 120.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cases of the GPUs that the number formats are for."""
    options = read_options(GpuOptions, metafunc.config.option)
    found = points(options.arch, options.small)
    if "ranks" in metafunc.fixturenames:
        metafunc.parametrize(("ranks", "name"), [(one.ranks, one.name) for one in found if one.ranks > 1])
    else:
        metafunc.parametrize("name", [one.name for one in found])


def test_all_ranks_on_one_gpu(name: str, options: GpuOptions) -> None:
    record = read(options.kernels, name)
    verdict = judge(record, run_on_one_gpu(record, options.watchdog_s * 10**9))
    print(verdict.line)
    assert not verdict.violations, verdict.line


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, options: GpuOptions) -> Outcomes:
    return Outcomes(request, work, LIMIT_S, options.watchdog_s, folder=options.kernels, watchdog_ns=options.watchdog_s * 10**9)


def test_a_process_and_a_gpu_per_rank(ranks: int, name: str, host: Host, outcomes: Outcomes) -> None:
    if host.gpus < ranks:
        pytest.skip(f"{host.gpus} GPU(s) for {ranks} ranks")
    torch.cuda.empty_cache()
    record = outcomes.get(ranks, name)
    assert "error" not in record, record["error"]
    verdict = Verdict(**record)
    print(verdict.line)
    assert not verdict.violations, verdict.line
