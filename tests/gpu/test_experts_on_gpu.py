"""The layer on one GPU, and experts chosen from logits, on Hopper: the simulator's bits, launch by launch (expert_silicon.py)."""

from __future__ import annotations

import pytest

from expert_silicon import CHECKS, ExpertCheck, differing
from gpu_options import GpuOptions
from megamoe_dsl.arch import SM90
from megamoe_dsl.bench.host import Host
from megamoe_dsl.target import Target

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_launch_gives_the_simulators_bits(check: ExpertCheck, options: GpuOptions) -> None:
    if options.arch != SM90:
        pytest.skip("of Hopper's number formats")
    found = differing(options.kernels, Target(options.arch, options.gpu_sms, Host.typical(options.arch).gpu), check)
    print(f"{check.name}: {found}")
    assert not any(found.values())
