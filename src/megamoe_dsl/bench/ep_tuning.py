"""What a run of the expert-parallel kernels says of a GPU: fields that are faster than those that are chosen, and the time of each way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..kernels.moe.halves.family import EP_KERNELS
from ..kernels.moe.halves.tuned_fields import HALVES
from ..kernels.moe.halves.way import Way
from ..tuned import EpEntry, Table
from .ep import Variant
from .point import Point
from .results import ResultsError

NOISE = 1.08
"""A winner is more than so many times as fast as what is chosen: equal kernels differ by 5 % between runs (docs/ep_moe.md)."""
FOR_MEASUREMENTS = frozenset({"saving_experts", "trace"})
"""Fields with which a kernel does something else."""
HALVES_SAY = frozenset({"stages_us", "activation_us"})
"""What records of these kernels have one of, and no others."""
DISPATCH = (
    *("cluster=1", "block_wise=off", "block_wise=off cluster=1", "token_saving=off"),
    *("group_m=8", "task_tokens=2", "task_tokens=8", "block_n=128"),
)
COMBINE = ("cluster=1", "scatter=off", "group_m=8", "task_tokens=2", "task_tokens=8", "block_n=128")
CANDIDATES: Mapping[str, tuple[Variant, ...]] = {
    kernel.name: tuple(Variant(f"{half} {one}") for one in fields)
    for kernel, half, fields in zip(EP_KERNELS, HALVES, (DISPATCH, COMBINE), strict=True)
}
"""By the kernel's name, what may be faster than what is chosen."""


def winner_of(record: Mapping[str, Any], half: str) -> tuple[dict[str, Any], float]:
    """The fields of `half` ("dispatch" or "combine") that were fastest at a point and are not chosen without a table, and their time."""
    times = {name: one["median"] for name, one in record["us"].items()}
    chosen, fastest = dict(record.get("tuned", {}).get(half, {})), half
    for name, us in times.items():
        one = Variant(name)
        if name.split()[0] == half and not FOR_MEASUREMENTS & one.fields.keys() and us * NOISE < times[half] and us < times[fastest]:
            fastest = name
    return {**chosen, **Variant(fastest).fields}, times[fastest]


def entry_of(record: Mapping[str, Any], results: str) -> EpEntry:
    """What a point's record says of the ways to compute a layer, and of the two halves."""
    point, us = Point(**record["point"]), {name: one["median"] for name, one in record["us"].items()}
    problem = point.problem
    (dispatch, first), (combine, second) = (winner_of(record, half) for half in HALVES)
    activation = record["stages_us"]["moe_swiglu"] if "stages_us" in record else record["activation_us"]["median"]
    others = {way: us[way] for way in (Way.FUSED, Way.UNFUSED) if way in us}
    ways = {Way.HALVES: first + activation + second, **others}
    shape = (problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, point.tokens)
    return EpEntry(*shape, {str(way): round(one, 1) for way, one in ways.items()}, results, problem.recipe, dispatch, combine)


def entered(table: Table[EpEntry], results: Path) -> Table[EpEntry]:
    """The table with all points of a file of results that were right; of a way that was not timed, what the table has."""
    for record in read_run(results)[1]:
        if "us" in record and not record["differing"]:
            entry = entry_of(record, results.name)
            before = table.at(entry.share, entry.expected)
            table = table.having(replace(entry, us={**({} if before is None else before.us), **entry.us}))
    return table


def read_run(results: Path) -> tuple[str, list[dict[str, Any]]]:
    """GPU and records of a file.  Raises `ResultsError` for another file."""
    try:
        read = json.loads(results.read_text())
        gpu, records = str(read["gpu"]), list(read["records"])
        if not any("us" in one and HALVES_SAY & one.keys() for one in records):
            raise ValueError("no times of expert-parallel kernels")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(results) from error
    return gpu, records
