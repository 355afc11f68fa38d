"""What the stages' roles wait for and signal is needed and watched: each taken out on its own, something must notice.

`make test` runs a part of the faults; all of them with

    python -m pytest -m faults tests/kernels/test_stage_faults.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from fault_runs import sign_of
from fault_trial import assert_fault_is_noticed, assert_faults_are_different, each_fault
from sm90_faults import Sm90Fault
from sm90_runs import HopperCase, config, hopper_case, problem
from stage_faults import CASES, SAMPLE
from stage_runs import stages_of, unfused_layer

from megamoe_dsl.artifact.artifact import Artifact

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


def test_the_stages_themselves_show_no_sign() -> None:
    assert how_noticed(None, None) is None


def test_faults_are_different() -> None:
    ptx = {one.kernel.name: one.ptx for one in subject()[0]}
    for stage in {name for _, name in CASES}:
        assert_faults_are_different([fault for fault, name in CASES if name == stage], ptx[stage])
    assert len(CASES) > 40


@each_fault(CASES, SAMPLE)
def test_fault_is_noticed(fault: Sm90Fault, subject: str) -> None:
    assert_fault_is_noticed(how_noticed, fault, subject)
