"""What the GEMM's roles wait for and signal is needed and watched: each taken out on its own, something must notice.

`make test` runs every third fault; all of them, two minutes on two cores, with

    python -m pytest -m faults -n 2 tests/kernels/test_gemm_faults.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from fault_trial import assert_fault_is_noticed, assert_faults_are_different, each_fault, each_subject
from gemm_faults import CASES, SUBJECTS, ptx_of_subject
from sm90_faults import Sm90Fault

from megamoe_dsl.runtime.simulated import simulate_gemm
from megamoe_dsl.sim import Deadlock, SimError
from ptx_of import artifact
from sweep import sample

SAMPLE = CASES[::10]


def how_noticed(fault: Sm90Fault | None, subject: str, seed: int = 0) -> str | None:
    """The first sign of a fault (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    chosen = SUBJECTS[subject]
    compiled = artifact(chosen.run.config)
    if fault is not None:
        faulty = fault.apply(compiled.ptx)
        assert faulty != compiled.ptx
        compiled = replace(compiled, ptx=faulty)
    case = chosen.run.case(exact=True)
    expected = case.compared(exact=True)
    try:
        report = simulate_gemm(compiled, case.tensors, launches=chosen.launches, seed=seed)
    except Deadlock as error:
        return f"deadlock: {error}"
    except SimError as error:
        return f"simulator error: {error}"
    except AssertionError as error:
        return f"wrong result: the counter of tiles: {error}"
    if report.findings:
        return f"race: {report.findings[0]}"
    for name, (found, low, high) in expected.items():
        if not ((low <= found) & (found <= high)).all():
            return f"wrong result: {name}"
    return next((f"warning: {text}" for text in report.warnings), None)


@sample("rows", "columns", "decoding", "CTA pair", "gathered")
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_kernel_itself_shows_no_sign(subject: str) -> None:
    assert how_noticed(None, subject) is None


@pytest.mark.parametrize("subject", each_subject(SUBJECTS, SAMPLE))
def test_faults_are_different(subject: str) -> None:
    faults = [fault for fault, its in CASES if its == subject]
    assert_faults_are_different(faults, ptx_of_subject(subject))
    assert len(faults) >= 10


@each_fault(CASES, SAMPLE)
def test_fault_is_noticed(fault: Sm90Fault, subject: str) -> None:
    assert_fault_is_noticed(how_noticed, fault, subject)
