"""What the roles of the expert-parallel kernels wait for and signal is needed and watched: without any of it, something must notice.

`make test` runs a part of the faults; all of them with

    python -m pytest -m faults tests/kernels/test_ep_faults.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import ep_faults
import pytest
from ep_pair_faults import PAIR_CASES, PAIR_SAMPLE, PLAIN_CASES
from ep_runs import check_combine, check_dispatch, problem, row_activations, sign_of, simulated, small_config
from fault_trial import assert_fault_is_noticed, assert_faults_are_different, each_fault, each_subject
from mega_moe_runs import inputs
from sm90_faults import Sm90Fault

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from sweep import sample

CASES = (*ep_faults.CASES, *PAIR_CASES, *PLAIN_CASES)
SAMPLE = (*ep_faults.SAMPLE, *PAIR_SAMPLE, *PLAIN_CASES[9::30])
NAMES = tuple(dict.fromkeys(name for _, name in CASES))
WATCHDOG_NS = 1_000_000
LAUNCHES = 3


@dataclass(frozen=True)
class Subject:
    """Which of the two kernels runs, with which fields, on what; `case` has several tiles and tasks for every CTA, rings that wrap; `tile`
    has fields of both kernels."""

    dispatches: bool
    case: Case
    fields: dict[str, Any] = field(default_factory=dict)
    tile: dict[str, Any] = field(default_factory=dict)


@cache
def subjects() -> dict[str, Subject]:
    """`boxes`: an expert with more rows than a tile, which TMA stores; `long rows`: in BF16, of more chunks than a warp has slots."""
    few, many = (problem(tokens, num_experts=4, hidden=hidden, intermediate=256) for tokens, hidden in ((9, 512), (31, 256)))
    long = problem(6, num_experts=2, topk=2, num_ranks=1, hidden=4608, recipe="bf16xbf16")
    tall = problem(40, num_experts=2, topk=1, hidden=256)
    first, second = (problem(tokens, num_experts=4, intermediate=256, recipe="fp8xfp4") for tokens in (9, 31))
    plain, more = (problem(tokens, num_experts=4, intermediate=256, recipe="bf16xbf16") for tokens in (9, 31))
    draw = cache(random_case)
    pairs = {"arch_name": "sm_100a", "block_m": 128, "block_n": 256}
    return {
        "dispatch": Subject(True, draw(few, (9, 6), 0, mask=0.1)),
        "tail": Subject(True, draw(few, (9, 6), 0, mask=0.1), {"tail_sms": 1}),
        "long rows": Subject(True, draw(long, (6,), 0), {"block_n": 256}),
        "combine": Subject(False, draw(many, (31, 6), 0, mask=0.1), {"scatter": False}),
        "scatter": Subject(False, draw(many, (31, 6), 0, mask=0.1)),
        "serial": Subject(False, draw(many, (31, 6), 0, mask=0.1), {"interleaved": False, "token_blocks": 2}),
        "boxes": Subject(False, draw(tall, (40, 40), 0, target_expert=0), {"scatter": False}),
        "dispatch of pairs": Subject(True, draw(first, (9, 6), 0, mask=0.1)),
        "gather of pairs": Subject(False, draw(second, (31, 6), 0, mask=0.1), {"scatter": False}),
        "scatter of pairs": Subject(False, draw(second, (31, 6), 0, mask=0.1)),
        "serial of pairs": Subject(False, draw(second, (31, 6), 0, mask=0.1), {"interleaved": False, "token_blocks": 2}),
        "dispatch in BF16": Subject(True, draw(plain, (9, 6), 0, mask=0.1), tile=pairs),
        "gather in BF16": Subject(False, draw(more, (31, 6), 0, mask=0.1), {"scatter": False}, tile=pairs),
        "scatter in BF16": Subject(False, draw(more, (31, 6), 0, mask=0.1), tile=pairs),
    }


def ranks_of(subject: Subject, seed: int = 0) -> SimulatedEp:
    """With a short ring; a task has two tokens, so that a warp has several."""
    dispatch, combine = (subject.fields, {}) if subject.dispatches else ({}, subject.fields)
    config = small_config(subject.case.problem, num_stages=2, **subject.tile, **dispatch)
    combine = {"num_stages": 2, "task_tokens": 2, **combine}
    return simulated(config, subject.case, combine=combine, seed=seed, watchdog_ns=WATCHDOG_NS)


@cache
def ptx_of(name: str) -> str:
    subject = subjects()[name]
    ep = ranks_of(subject)
    return (ep.dispatch_kernel if subject.dispatches else ep.combine_kernel).ptx


def how_noticed(fault: Sm90Fault | None, name: str, seed: int = 0) -> str | None:
    """The first sign of a fault (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    subject = subjects()[name]
    ep, case = ranks_of(subject, seed), subject.case
    ptx = ptx_of(name) if fault is None else fault.apply(ptx_of(name))
    if subject.dispatches:
        ep.dispatch_kernel = replace(ep.dispatch_kernel, ptx=ptx)
        return sign_of(lambda: check_dispatch(ep, case, LAUNCHES))
    ep.combine_kernel = replace(ep.combine_kernel, ptx=ptx)
    ep.store(inputs(case))
    return sign_of(lambda: check_combine(ep, case, row_activations(ep, seed), LAUNCHES))


@sample("combine", "dispatch of pairs")
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_itself_shows_no_sign(name: str) -> None:
    assert how_noticed(None, name) is None


@pytest.mark.parametrize("name", each_subject(NAMES, SAMPLE))
def test_faults_are_different(name: str) -> None:
    faults = [fault for fault, its in CASES if its == name]
    assert_faults_are_different(faults, ptx_of(name))
    assert len(faults) >= 5


@each_fault(CASES, SAMPLE)
def test_fault_is_noticed(fault: Sm90Fault, subject: str) -> None:
    assert_fault_is_noticed(how_noticed, fault, subject)
