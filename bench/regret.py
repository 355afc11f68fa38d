"""What a shape costs that nobody has tuned: each shape of the tuned tables left out of them, and what is chosen then beside the fastest
configuration that was timed.  The tables of docs/lab/tuning.md.

python bench/regret.py [FILE ...]

FILE: records with several configurations of a point; by default those that the tables are made of.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from megamoe_dsl import Target, choose
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.results import Results
from megamoe_dsl.bench.tuning import beats, median, right_variants
from megamoe_dsl.bench.variant import kind_of, variant_name
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.tuned import Table
from megamoe_dsl.tuned.table import FOLDER

RESULTS = Path(__file__).parent / "results"
SHOWN = 0.01
"""Of the fastest time: regrets from here on have a line of their own."""


@dataclass(frozen=True)
class Regret:
    """A point whose shape is left out: what is chosen then, the fastest, and their times.

    apart  whether the fastest is faster by more than noise (`verdict.beats`)
    """

    shape: str
    tokens: int
    chosen: MegaMoeConfig
    best: MegaMoeConfig
    chosen_us: float
    best_us: float
    apart: bool

    @property
    def share(self) -> float:
        """0.02 where the choice takes 2 % longer."""
        return self.chosen_us / self.best_us - 1


def tables() -> list[Table[Any]]:
    """Of the fused kernel, one of each GPU that was measured."""
    return [Table.read(path.stem) for path in sorted(FOLDER.glob("*.json")) if not path.stem.endswith("-gemm")]


def files_of_tables() -> list[Path]:
    """The records that the tables are made of."""
    names = {entry.results for table in tables() for entry in table.entries}
    return [RESULTS / name for name in sorted(names)]


def regrets(found: Results) -> Iterator[Regret]:
    """Of the points of a run at which what is chosen without the shape's entries was timed beside others.

    Entries speak for their own share of a shape alone, so without them the heuristics choose."""
    for record in found.records:
        if "variants" not in record or not record["point"]["tokens"]:
            continue
        point = Point(**record["point"])
        chosen = choose(point.problem, Target(kind_of(point.recipe).arch, 132), point.tokens, **point.pool)
        timed = dict(right_variants(record, chosen))
        if chosen in timed and len(timed) > 1:
            best = min(timed, key=lambda config: median(timed[config]))
            yield Regret(
                *(shape_of(point, found.gpu), point.tokens, chosen, best, median(timed[chosen]), median(timed[best])),
                apart=beats(timed[best], timed[chosen]),
            )


def shape_of(point: Point, gpu: str) -> str:
    """DeepSeek-V4-Flash's share of a rank is flash, 32 experts; formats other than FP8, and a GPU other than an H200, are told."""
    recipe = "" if point.recipe == "fp8xfp8" else f", {point.recipe}"
    return f"{point.preset}, {point.problem.experts_per_rank} experts{recipe}, {gpu.split()[1]}"


def by_shape(found: Iterable[Regret]) -> dict[str, list[Regret]]:
    """In the order of the records, those of a point that was timed again after those of before."""
    shapes: dict[str, list[Regret]] = defaultdict(list)
    for one in found:
        shapes[one.shape].append(one)
    return shapes


def summary(found: Sequence[Regret]) -> str:
    """A line per shape that is left out."""
    lines = ["| Shape left out | points | within noise | mean regret | largest, at tokens per rank |", "|---|---|---|---|---|"]
    for shape, points in by_shape(found).items():
        worst = max(points, key=lambda one: one.share)
        equal = sum(not one.apart for one in points)
        mean = fmean(one.share for one in points)
        lines.append(f"| {shape} | {len(points)} | {equal} | {mean:.1%} | {worst.share:.1%}, {worst.tokens} |")
    return "\n".join(lines)


def details(found: Sequence[Regret]) -> str:
    """A line per regret beyond noise and `SHOWN`."""
    lines = ["| Point | chosen | us | fastest | us | regret |", "|---|---|---|---|---|---|"]
    for one in found:
        if one.apart and one.share >= SHOWN:
            names = (variant_name(config) for config in (one.chosen, one.best))
            chosen, best = names
            where = f"{one.shape}: {one.tokens}"
            lines.append(f"| {where} | {chosen} | {one.chosen_us:.1f} | {best} | {one.best_us:.1f} | {one.share:.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files or files_of_tables()
    found = [one for file in files for one in regrets(Results.read(file))]
    print(summary(found), details(found), sep="\n\n")


if __name__ == "__main__":
    main()
