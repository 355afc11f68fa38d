"""Runs a faulty kernel and says how the fault was noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from kernel_faults import Fault, all_faults
from mega_moe_runs import Layer, config, problem

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.sim import Assumptions, Deadlock, SimError
from ptx_of import artifact

SUBJECTS = 3  # of a recipe
BF16 = SUBJECTS  # the number of the first of those in BF16
SEEDS = range(2)  # schedules tried before a fault counts as unnoticed
WATCHDOG_NS = 3_000_000
LEADERS = (0, 9, 31)  # the lane that `elect.sync` elects, by schedule
LAUNCHES = ((64, 33), (3, 2))  # two without a pause: the second runs into what the first has not finished
SMALL_LAUNCHES = ((8, 5), (3, 2))


@cache
def subject(number: int = 0) -> tuple[Artifact, Case]:
    """A kernel and data in which everything happens.

    0  work for all dispatch warps of all CTAs in every phase, up to three passes per tile, several experts, a ring that wraps; one rank's
       tokens are told by all its CTAs, the other's by SM 0 alone, by each thread up to three
    1  a short ring and a wide hidden, so that combine reuses the SMEM of every role
    2  the same code as 0 for a few tokens on two SMs, in a third of the time
    3  to 5: the same in BF16
    """
    if number >= BF16:
        return of_recipe(number - BF16, "bf16xbf16")
    return of_recipe(number, "fp8xfp4")


def of_recipe(number: int, recipe: str) -> tuple[Artifact, Case]:
    passes = {"block_m": 64, "store_block_m": 16, "epilogue_warpgroups": 2, "num_stages": 3}
    if number == 2:
        moe = problem(8, topk=8, recipe=recipe)
        return artifact(config(moe, num_sms=2, lookahead=3, **passes)), random_case(moe, (8, 5), 0, mask=0.4)
    if number == 0:
        moe = problem(64, topk=8, num_experts=40, recipe=recipe)
        kernel = config(moe, lookahead=5, **passes)
        return artifact(kernel), random_case(moe, (64, 33), 0, target_expert=2, mask=0.4)
    moe = problem(64, hidden=2048, num_experts=4, recipe=recipe)
    return artifact(config(moe, block_m=16, num_stages=2)), random_case(moe, (64, 33), 0, mask=0.1)


@cache
def catalogue(number: int = 0) -> dict[str, Fault]:
    """Faults of a subject by name: of rules that have as many sites in it as in the first of its recipe, in the same order."""
    faults = {fault.name: fault for fault in all_faults(subject(number)[0].ptx)}
    if number % SUBJECTS:
        sites, first = Counter(map(rule_of, faults)), Counter(map(rule_of, catalogue(number // SUBJECTS * SUBJECTS)))
        faults = {name: fault for name, fault in faults.items() if sites[rule_of(name)] == first[rule_of(name)]}
    return faults


def rule_of(name: str) -> str:
    """The rule of a fault of this name."""
    return name.rsplit(" ", 1)[0]


def how_noticed(name: str | None, seed: int = 0, number: int = 0) -> str | None:
    """The first sign of a fault (None: no fault) under one schedule, as `kind: text`; None when there is none."""
    compiled, case = subject(number)
    if name is not None:
        compiled = replace(compiled, ptx=catalogue(number)[name].apply(compiled.ptx))
    return sign_of(compiled, case, SMALL_LAUNCHES if number % SUBJECTS == 2 else LAUNCHES, seed)


def sign_of(compiled: Any, case: Case, launches: Sequence[Sequence[int]], seed: int, make: Callable[..., Layer] = Layer.of) -> str | None:
    """What shows that a kernel is wrong when it runs these launches without a pause, as `kind: text`; None when nothing does.  `make` puts
    what is compiled on simulated ranks."""
    layer = None
    try:
        layer = make(compiled, case, seed=seed, watchdog_ns=WATCHDOG_NS)
        layer.moe.simulator.assumptions = Assumptions(leader=LEADERS[seed % len(LEADERS)])
        ranks, report = layer.stream(case, launches)
    except Deadlock as error:
        return f"deadlock: {error}"
    except SimError as error:
        records = [text for rank in layer.moe.ranks if (text := rank.watchdog_message())] if layer else []
        return f"watchdog: {records[0]}" if records else f"simulator error: {error}"
    if report.findings:
        return f"race: {report.findings[0]}"
    if any(one.violations for one in ranks):
        return f"wrong result: {[one.violations for one in ranks]}"
    try:
        layer.check_workspace()
    except AssertionError as error:
        return f"workspace: {error}"
    warnings = [text for text in report.warnings if "tcgen05.ld of uninitialized TMEM" not in text]
    return f"warning: {warnings[0]}" if warnings else None


def with_fault(compiled: Artifact, name: str | None) -> Artifact:
    """A kernel with the fault of this name in its PTX, if there is a name."""
    if name is None:
        return compiled
    return replace(compiled, ptx={fault.name: fault for fault in all_faults(compiled.ptx)}[name].apply(compiled.ptx))


def notice(name: str, first: int = 0) -> str | None:
    """`how_noticed` under the first subject and schedule that show the fault, of the subjects from `first` on; the smallest comes first."""
    runs = ((seed, first + number) for number in (2, 0, 1) for seed in SEEDS)
    tried = (how_noticed(name, seed, number) for seed, number in runs if name in catalogue(number))
    return next((sign for sign in tried if sign is not None), None)
