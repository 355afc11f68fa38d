"""The module `MegaMoE` on GPUs (layer_checks.py), with a process per GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gpu_options import GpuOptions
from layer_checks import CHECKS, work
from megamoe_dsl.bench.host import Host
from megamoe_dsl.runtime.rank_kernel import WATCHDOG_NS
from outcomes import Outcomes
from ranks_on_gpus import CONCURRENT
from script_options import read_options

pytestmark = pytest.mark.gpu
LIMIT_S = 150.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The watchdog's check needs a rank that stays away."""
    options = read_options(GpuOptions, metafunc.config.option)
    gpus = options.gpus or max(1, torch.cuda.device_count())
    found = [(ranks, name) for ranks in options.layer_ranks(gpus) for name in CHECKS if ranks > 1 or name != "watchdog"]
    metafunc.parametrize(("ranks", "name"), found)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, options: GpuOptions, host: Host) -> Iterator[Outcomes]:
    """Of processes that have one rank each, and need nothing of `CONCURRENT`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in CONCURRENT:
            patch.delenv(name, raising=False)
        yield Outcomes(request, work, LIMIT_S, WATCHDOG_NS / 1e9, folder=options.kernels, options=options)


def test_layer(ranks: int, name: str, outcomes: Outcomes) -> None:
    record = outcomes.get(ranks, name)
    assert "error" not in record, record["error"]
