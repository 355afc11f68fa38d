"""Runs a faulty kernel and says how the fault was noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from kernel_faults import Fault, all_faults
from mega_moe_runs import Layer, artifact, config, problem

from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.compile import Artifact
from megamoe_dsl.sim import Deadlock, SimError

SEEDS = range(2)  # schedules tried before a fault counts as unnoticed
WATCHDOG_NS = 3_000_000
LAUNCHES = ((64, 5), (3, 2))  # two without a pause: the second runs into what the first has not finished


@cache
def subject() -> tuple[Artifact, Case]:
    """A kernel and data in which everything happens: work for all dispatch warps of all CTAs in every phase, two passes per tile, two
    blocks per expert, several waves, a ring that wraps."""
    moe = problem(64, topk=8, num_experts=40)
    kernel = config(moe, block_m=32, store_block_m=16, experts_per_wave=5, num_stages=3)
    return artifact(kernel), random_case(moe, (64, 11), 0, target_expert=2, mask=0.4)


@cache
def catalogue() -> dict[str, Fault]:
    return {fault.name: fault for fault in all_faults(subject()[0].ptx)}


def how_noticed(fault: Fault | None, seed: int) -> str | None:
    """The first sign of the fault under one schedule, as `kind: text`; None when there is none."""
    compiled, case = subject()
    if fault is not None:
        compiled = replace(compiled, ptx=fault.apply(compiled.ptx))
    layer = None
    try:
        layer = Layer.of(compiled, case, seed=seed, watchdog_ns=WATCHDOG_NS)
        ranks, report = layer.stream(case, LAUNCHES)
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
    warnings = [text for text in report.warnings if "tcgen05.ld of uninitialised TMEM" not in text]
    return f"warning: {warnings[0]}" if warnings else None


def notice(fault: Fault) -> str | None:
    """`how_noticed` under the first schedule that shows the fault."""
    return next((sign for seed in SEEDS if (sign := how_noticed(fault, seed)) is not None), None)
