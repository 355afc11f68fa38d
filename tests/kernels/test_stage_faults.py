"""What the stages' roles wait for and signal is needed and watched: each taken out on its own, something must notice.

`make test` runs a part of the faults; all of them with

    python -m pytest -m faults tests/kernels/test_stage_faults.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from fault_runs import sign_of
from sm90_faults import Sm90Fault
from sm90_runs import HopperCase, config, hopper_case, problem
from stage_faults import CASES, SAMPLE
from stage_runs import stages_of, unfused_layer

from first_finding import assert_noticed
from megamoe_dsl.artifact.artifact import Artifact

SEEDS = range(3)  # schedules tried before a fault counts as unnoticed
TOKENS = (6, 3)


@cache
def subject() -> tuple[list[Artifact], HopperCase]:
    """Kernels whose CTAs work on several tiles, whose rings wrap, and whose workspace is used again."""
    moe = problem(max(TOKENS), num_experts=4, hidden=512, intermediate=384)
    return stages_of(config(moe, block_m=8, num_sms=2), num_stages=2), hopper_case(moe, TOKENS, 0)


def how_noticed(fault: Sm90Fault | None, name: str | None, seed: int = 0) -> str | None:
    """The first sign of a fault of a stage (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    stages, case = subject()
    if fault is not None:
        stages = [replace(one, ptx=fault.apply(one.ptx)) if one.kernel.name == name else one for one in stages]
        assert stages != subject()[0]
    return sign_of(stages, case, (TOKENS, (2, 0)), seed, unfused_layer)


def name_of(value: object) -> str:
    return value.name if isinstance(value, Sm90Fault) else str(value)


def test_the_stages_themselves_show_no_sign() -> None:
    assert how_noticed(None, None) is None


def test_faults_are_different() -> None:
    """Every fault finds its place, and no two of a stage make the same PTX."""
    ptx = {one.kernel.name: one.ptx for one in subject()[0]}
    assert len({(name, fault.apply(ptx[name])) for fault, name in CASES}) == len(CASES) > 40
    assert all(fault.apply(ptx[name]) != ptx[name] for fault, name in CASES)


@pytest.mark.parametrize(("fault", "name"), SAMPLE, ids=name_of)
def test_fault_is_noticed(fault: Sm90Fault, name: str) -> None:
    tried = (how_noticed(fault, name, seed) for seed in SEEDS)
    assert_noticed(fault.signs, lambda: next((sign for sign in tried if sign is not None), None))


@pytest.mark.faults
@pytest.mark.parametrize(("fault", "name"), [one for one in CASES if one not in SAMPLE], ids=name_of)
def test_every_fault_is_noticed(fault: Sm90Fault, name: str) -> None:
    test_fault_is_noticed(fault, name)
