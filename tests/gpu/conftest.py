"""pytest -m gpu tests/gpu: where Hopper or Blackwell GPUs are.

Torch, cuda-bindings and pytest are enough there; prepare.py runs where the DSL is."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from gpu_options import SOAK_RANKS, GpuOptions
from megamoe_dsl.bench.host import Host
from megamoe_dsl.problem import ProblemError
from ranks_on_gpus import CONCURRENT, let_gpus_see_each_other
from script_options import add_options, naming_options, read_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser.getgroup("checks on GPUs").addoption, GpuOptions)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a `point` runs at those of the soak."""
    if "point" in metafunc.fixturenames:
        points = read_options(GpuOptions, metafunc.config.option).soak_points()
        metafunc.parametrize("point", points, ids=[one.name.replace(" ", "_") for one in points])


@pytest.fixture(scope="session")
def options(request: pytest.FixtureRequest) -> GpuOptions:
    """What the command line says; the defaults where it could not say anything, because the tests were found in a parent folder."""
    return read_options(GpuOptions, request.config.option)


@pytest.fixture(scope="session", autouse=True)
def host(options: GpuOptions) -> Host:
    """This host, with the GPUs to use, which are those of the number formats.  Raises `HostError` and `ProblemError`."""
    os.environ.update(CONCURRENT)  # before CUDA is there
    found = Host.find()
    gpus = found.gpus if options.gpus is None else options.gpus
    with naming_options(GpuOptions):
        if not 1 <= gpus <= found.gpus or SOAK_RANKS % gpus:
            raise ProblemError("gpus", gpus, f"a divisor of {SOAK_RANKS}, at most {found.gpus}")
        if found.arch != options.arch:
            raise ProblemError("recipe", options.recipe, f"one for {found.arch}, which is what this host has")
    return replace(found, gpus=gpus)


@pytest.fixture(scope="module")
def devices(host: Host) -> list[torch.device]:
    """The GPUs to use, of one process."""
    found = [torch.device("cuda", index) for index in range(host.gpus)]
    let_gpus_see_each_other(found)
    return found
