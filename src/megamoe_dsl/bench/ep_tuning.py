"""What a run of the expert-parallel kernels says of a GPU: fields that are faster than those that are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..json_file import read_json_object
from ..kernels.moe.halves.config import HALVES
from ..kernels.moe.halves.family import EP_KERNELS
from ..tuned import EpEntry, Table
from .ep import Variant
from .point import Point
from .results import ResultsError

NOISE = 1.08
"""A winner is more than so many times as fast as what is chosen: equal kernels differ by 5 % between runs (docs/explanation/ep_moe.md)."""
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


def winner_of(record: Mapping[str, Any], half: str) -> dict[str, Any]:
    """The fields of `half` ("dispatch" or "combine") that were fastest at a point and are not chosen without a table."""
    times = {name: one["median"] for name, one in record["us"].items()}
    chosen, fastest = dict(record.get("tuned", {}).get(half, {})), half
    for name, us in times.items():
        if name.split()[0] == half and us * NOISE < times[half] and us < times[fastest]:
            fastest = name
    return {**chosen, **Variant(fastest).fields}


def entry_of(record: Mapping[str, Any], results: str) -> EpEntry:
    """What a point's record says of the two halves."""
    point = Point(**record["point"])
    problem, (dispatch, combine) = point.problem, (winner_of(record, half) for half in HALVES)
    shape = (problem.hidden, problem.intermediate, problem.experts_per_rank, problem.topk, point.tokens)
    return EpEntry(*shape, results, problem.recipe, dispatch, combine)


def entered(table: Table[EpEntry], results: Path) -> Table[EpEntry]:
    """The table with all points of a file of results that were right."""
    for record in read_run(results)[1]:
        if "us" in record and not record["differing"]:
            table = table.having(entry_of(record, results.name))
    return table


def read_run(results: Path) -> tuple[str, list[dict[str, Any]]]:
    """GPU and records of a file.  Raises `ResultsError` for another file."""
    try:
        read = read_json_object(results)
        gpu, records = str(read["gpu"]), list(read["records"])
        if not any("us" in one and HALVES_SAY & one.keys() for one in records):
            raise ValueError("no times of expert-parallel kernels")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(results) from error
    return gpu, records
