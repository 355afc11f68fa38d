"""What the kernel that makes routing tables waits for and signals is needed and watched: without any of it, something must notice.

`make test` runs a part of the faults; all of them with

    python -m pytest -m faults tests/kernels/test_tables_faults.py
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from ep_runs import sign_of
from fault_trial import assert_fault_is_noticed, assert_faults_are_different, each_fault
from sm90_faults import Sm90Fault
from tables_faults import CASES, SAMPLE, SUBJECTS
from test_ep_tables import problem, run_kernel

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases.routing import draw_experts
from megamoe_dsl.kernels.moe.halves.config import RoutingTablesConfig
from ptx_of import artifact

SHAPES = {"tables": "more tokens of a warp than it sorts at a time", "tables of several CTAs": "three CTAs"}
TOKENS = (200, 7)
LAUNCHES = 2
WATCHDOG_NS = 1_000_000


@cache
def made(name: str) -> tuple[Artifact, list[torch.Tensor]]:
    """The kernel, and experts of two ranks: pairs of all, of few and of no experts."""
    moe, generator = problem(SHAPES[name]), torch.Generator().manual_seed(0)
    idx = [draw_experts(moe, count, torch.zeros(moe.num_experts), generator, 0.2) for count in TOKENS]
    return artifact(RoutingTablesConfig(moe)), idx


def how_noticed(fault: Sm90Fault | None, name: str, seed: int = 0) -> str | None:
    """The first sign of a fault (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    kernel, idx = made(name)
    faulty = kernel if fault is None else replace(kernel, ptx=fault.apply(kernel.ptx))
    # The launch before has the ranks' tokens in turn, so other CTAs have a turn.
    return sign_of(lambda: run_kernel(faulty, SHAPES[name], idx, LAUNCHES, seed, WATCHDOG_NS, [idx[::-1]]))


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_kernel_itself_shows_no_sign(name: str) -> None:
    assert how_noticed(None, name) is None


@pytest.mark.parametrize("name", SUBJECTS)
def test_faults_are_different(name: str) -> None:
    assert_faults_are_different(SUBJECTS[name], made(name)[0].ptx)
    assert len(SUBJECTS[name]) > 25


@each_fault(CASES, SAMPLE)
def test_fault_is_noticed(fault: Sm90Fault, subject: str) -> None:
    assert_fault_is_noticed(how_noticed, fault, subject)
