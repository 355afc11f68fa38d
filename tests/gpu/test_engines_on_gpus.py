"""SGLang's and vLLM's call sequences on GPUs (engine_checks.py), with a process per GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine_checks import work
from engines import ENGINES
from gpu_options import GpuOptions
from megamoe_dsl.bench.host import Host
from megamoe_dsl.runtime.rank_kernel import WATCHDOG_NS
from outcomes import Outcomes
from ranks_on_gpus import CONCURRENT
from script_options import read_options

pytestmark = pytest.mark.gpu
LIMIT_S = 100.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    options = read_options(GpuOptions, metafunc.config.option)
    gpus = options.gpus or max(1, torch.cuda.device_count())
    metafunc.parametrize(("ranks", "name"), [(ranks, name) for ranks in options.layer_ranks(gpus) for name in ENGINES])


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, options: GpuOptions, host: Host) -> Iterator[Outcomes]:
    """Of processes that have one rank each, and need nothing of `CONCURRENT`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CONCURRENT:
            patch.delenv(name, raising=False)
        yield Outcomes(request, work, LIMIT_S, WATCHDOG_NS / 1e9, folder=options.kernels)


def test_engine(ranks: int, name: str, outcomes: Outcomes) -> None:
    record = outcomes.get(ranks, name)
    assert "error" not in record, record["error"]
