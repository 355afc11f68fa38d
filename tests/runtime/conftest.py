"""What tests of the layer share."""

from collections.abc import Iterator

import pytest

from simulated_gpu import SimulatedKernel, simulated_gpu
from uninitialized import uninitialized_memory_is_garbage


@pytest.fixture(scope="module")
def gpu() -> Iterator[type[SimulatedKernel]]:
    with pytest.MonkeyPatch.context() as patch, simulated_gpu(patch) as kernel:
        yield kernel


garbage = pytest.fixture(autouse=True)(uninitialized_memory_is_garbage)
