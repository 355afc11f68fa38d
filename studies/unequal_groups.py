"""Tiles for groups whose rows are unequal, which a configuration cannot be chosen for (docs/gemm.md): kernels of every tile, dealt at run
time, beside the baseline, for four ways to divide rows among 32 groups.

    python studies/unequal_groups.py prepare FOLDER                          where the DSL is: compiles the kernels
    python studies/unequal_groups.py run FOLDER --baseline SITE              on a GPU
    python studies/unequal_groups.py table bench/results/gemm-20261122-174938.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
from megamoe_dsl.bench.options import at_least

from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.bench.gemm.point import SKEWED, GemmPoint
from megamoe_dsl.bench.gemm.run import passed
from megamoe_dsl.bench.result_file import heading, result_path, write
from megamoe_dsl.blocks.gemm.config import GemmConfig
from megamoe_dsl.blocks.gemm.problem import CONTIGUOUS, PACKED, GemmProblem
from megamoe_dsl.config_error import ConfigError

GROUPS, N, K = 32, 4096, 4096
ROWS = (64, 100, 166, 250, 384)
SHOWN = (64, 166, 250, 384)
TILES: tuple[dict[str, Any], ...] = (
    {"block_m": 128, "block_n": 256, "halves": False},
    {"block_m": 128, "block_n": 256, "halves": True},
    {"block_m": 128, "block_n": 128, "halves": False},
    {"block_m": 128, "block_n": 128, "halves": True},
    {"block_m": 128, "block_n": 128, "halves": False, "ahead": 2},
    {"block_m": 128, "block_n": 128, "halves": True, "ahead": 2},
    {"block_m": 128, "block_n": 192, "halves": False},
    {"block_m": 128, "block_n": 192, "halves": True},
    {"block_m": 64, "block_n": 256, "warpgroups": 2},
    {"block_m": 192, "block_n": 128, "warpgroups": 3},
)
COLUMNS = ("128x256 w2 c1 s4 g8 a1 dealt", "128x128 w2 c1 s5 g8 a2 dealt", "64x256 w2 c1 s4 g8 a1 dealt", "192x128 w3 c1 s4 g8 a1 dealt")
HEADINGS = f"""\
| Groups ({GROUPS}, N = K = {N}) | rows of each, on average | DeepGEMM | 128 x 256 | 128 x 128 | 64 x 256 | 192 x 128 |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class DividedPoint(GemmPoint):
    """A point whose groups have `mean` rows on average, divided as `division` says."""

    division: str
    mean: int

    @property
    def name(self) -> str:
        """packed skewed 32x64x4096x4096"""
        return f"{self.problem.kind} {self.division} {GROUPS}x{self.mean}x{N}x{K}"


def divisions(mean: int) -> dict[str, tuple[int, ...]]:
    """Rows of each group: as many of each; drawn uniformly; quantiles of an exponential distribution; and as of experts of which few have
    most.  Rounding may add or take a few rows."""
    drawn = Counter(torch.randint(GROUPS, (mean * GROUPS,), generator=torch.Generator().manual_seed(1)).tolist())
    quantiles = [-log(1 - (i + 0.5) / GROUPS) for i in range(GROUPS)]
    return {
        "equal": (mean,) * GROUPS,
        "multinomial": tuple(drawn[group] for group in range(GROUPS)),
        "exponential": in_proportion(quantiles, mean),
        "skewed": in_proportion(SKEWED, mean),
    }


def in_proportion(shares: Any, mean: int) -> tuple[int, ...]:
    """Rows in the ratio of shares."""
    return tuple(round(one * mean * GROUPS / sum(shares)) for one in shares)


def points() -> list[DividedPoint]:
    """All points of the study."""
    return [
        DividedPoint(GemmProblem(N, K, kind, GROUPS), counts, division, mean)
        for mean in ROWS
        for division, counts in divisions(mean).items()
        for kind in (PACKED, CONTIGUOUS)
    ]


def configs_of(problem: GemmProblem) -> list[GemmConfig]:
    """Every tile that the problem's kind allows; half tiles of packed rows alone."""
    found = []
    for tile in TILES:
        if problem.kind == CONTIGUOUS and tile.get("halves"):
            continue
        try:
            found.append(GemmConfig(problem, dealt=True, **tile))
        except ConfigError:
            continue
    return found


def run(folder: Path, baseline: Path | None, out: Path) -> bool:
    """Times all points and writes a record; whether all were right."""
    from megamoe_dsl.bench.gemm.session import run_point, table

    out.mkdir(parents=True, exist_ok=True)
    path, head = result_path(out, "gemm"), heading(None if baseline is None else str(baseline))
    store, records = ArtifactStore(folder), list[dict[str, Any]]()
    for point in points():
        records.append(run_point(point, configs_of(point.problem), store, baseline))
        write(path, head, records)
        print(table(records[-1]), flush=True)
    print(f"wrote {path}")
    return all(map(passed, records))


def markdown(records: list[dict[str, Any]]) -> str:
    """The table of docs/gemm.md: microseconds in graphs of packed rows."""
    found = {record["name"]: record for record in records}
    lines = [HEADINGS]
    for division in divisions(SHOWN[0]):
        for mean in SHOWN:
            kernels = found[f"{PACKED} {division} {GROUPS}x{mean}x{N}x{K}"]["kernels"]
            theirs = least(kernels, "deep_gemm")
            ours = [least(kernels, tile) for tile in COLUMNS]
            label = "drawn uniformly" if division == "multinomial" else division
            lines.append(f"| {label} | {mean} | {theirs:.0f} | {' | '.join(f'{us:.0f} ({theirs / us:.2f})' for us in ours)} |")
    return "\n".join(lines)


def least(kernels: list[dict[str, Any]], prefix: str) -> float:
    """The shortest time of kernels of this name."""
    return min(one["graph_us"]["median"] for one in kernels if one["kernel"].startswith(prefix))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("place", type=Path, help="folder of compiled kernels; of table, what a run wrote")
    parser.add_argument("--baseline", type=Path, help="folder of unpacked wheels")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    given = parser.parse_args()
    if given.what == "prepare":
        problems = dict.fromkeys(point.problem for point in points())
        compile_into(given.place, [config for problem in problems for config in configs_of(problem)], given.jobs)
    elif given.what == "table":
        print(markdown(json.loads(given.place.read_text())["records"]))
    else:
        sys.exit(not run(given.place, given.baseline, given.out))


if __name__ == "__main__":
    main()
