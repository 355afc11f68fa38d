"""From a run's records to the GPU's table of measured configurations (tuned/)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ...blocks.gemm.config import GemmConfig
from ...blocks.gemm.problem import GemmProblem
from ...blocks.gemm.tile import GROUP_ROWS
from ...json_file import read_json_object
from ...tuned import GemmEntry, Table
from ..results import ResultsError

STAYS = 1.01  # what the table has stays, unless another one is faster by more than so much
DERIVED = ("num_sms", "num_stages")
"""Fields that no entry has: of the GPU, and the deepest ring."""


def time_of(kernel: dict[str, Any]) -> float:
    """Microseconds in a CUDA graph, where no host holds it up."""
    return float(kernel["graph_us"]["median"])


def choice_of(config: dict[str, Any]) -> dict[str, Any]:
    """Fields of a configuration that are not their defaults; how many warpgroups, where a tile does not say."""
    default = {one.name: one.default for one in fields(GemmConfig) if one.default is not MISSING}
    derived = (*DERIVED, "warpgroups") if config["block_m"] > GROUP_ROWS else DERIVED
    return {name: value for name, value in config.items() if name not in derived and default.get(name) != value}


def entry_of(record: dict[str, Any], kernel: dict[str, Any], results: str) -> GemmEntry:
    """What a table says of a kernel at a point."""
    problem = GemmProblem(**record["problem"])
    choice = choice_of(kernel["config"])
    rows, us, sms = sum(record["counts"]), round(time_of(kernel), 1), kernel["config"]["num_sms"]
    return GemmEntry(problem.n, problem.k, problem.kind, problem.num_groups, sms, rows, choice, us, results, problem.recipe)


def read_run(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The GPU and the records of a results file.  Raises `ResultsError` for what is none of GEMMs."""
    try:
        found = read_json_object(path)
        gpu, records = str(found["gpu"]), list(found["records"])
        for one in records:
            GemmProblem(**one["problem"])
    except (ValueError, LookupError, TypeError):
        raise ResultsError(path) from None
    return gpu, records


def enter_run(table: Table[GemmEntry], results: str, records: Sequence[dict[str, Any]]) -> Table[GemmEntry]:
    """The table with the winners of the run that wrote the file `results`; points with unequal groups, other outputs or nothing that passed
    its check are left out."""
    for record in records:
        ours = [one for one in record.get("kernels", ()) if one["config"] is not None and one["check"]["passed"]]
        if not ours or len(set(record["counts"])) > 1 or record["problem"]["output"] != "bf16":
            continue
        found = entry_of(record, min(ours, key=time_of), results)
        before = table.at(found.share, found.expected)
        same = [one for one in ours if before is not None and entry_of(record, one, results).choice == before.choice]
        if same and time_of(same[0]) <= found.us * STAYS:
            found = entry_of(record, same[0], results)
        table = table.having(found)
    return table
