"""How far predicted times (`bench/predict.py`) are from measured and published ones: the tables of docs/lab/prediction.md.

python bench/prediction_errors.py [--tokens MOST]

Measured: records of this folder, of H200s.  Published: published_times.json, of DeepGEMM's SM100 kernel on B200s and GB200s.  All tokens
take a few minutes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.variant import read_variant
from megamoe_dsl.presets import preset
from megamoe_dsl.problem import Problem
from prediction.calibration import calibration_of
from prediction.deep_gemm import beside_ours, packed_subject, subject_of
from prediction.launch import RankLoad
from prediction.prediction import Subject, prefers

HERE = Path(__file__).parent
RESULTS = HERE / "results"
POINTS = ("mega_moe_sm90-time-20261129-131904", "mega_moe_sm90-time-20261129-131926")
"""The records of docs/lab/performance.md and of the README."""
VARIANTS = ("mega_moe_sm90-time-20261121-203933", "mega_moe_sm90-time-20261121-204016")
"""Of the tuned table: several configurations of each point."""
PACKED = ("mega_moe_sm90-time-20261122-104414", "mega_moe_sm90-time-20261122-104444")
"""Of weights of 4 bits; up to `PACKED_TOKENS`, beyond which today's kernel has other tiles."""
PACKED_TOKENS = 256
ANY = 1 << 30
SEED, DRAWS = 0, 400


@dataclass(frozen=True)
class Predicted:
    """A time in microseconds beside the model's; `low` and `high` are the extremes of its repeats, `group` what it is compared within."""

    group: str
    name: str
    us: float
    model: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """0.05 where the model says 5 % too much."""
        return self.model / self.us - 1


def measured(files: Sequence[str], most_tokens: int = ANY, least_tokens: int = 0) -> Iterator[Predicted]:
    """Every configuration of a point's number formats in records of H200s, in their order."""
    for name in files:
        found = json.loads((RESULTS / f"{name}.json").read_text())
        for record in found["records"]:
            point = Point(**record["point"])
            if least_tokens <= point.tokens <= most_tokens:
                yield from measured_point(point, record, found["gpu"])


def recorded_load(problem: Problem, tokens: int, received: int, touched: int, remote: float) -> RankLoad:
    """The load of a rank that received `received` tokens with `touched` of its experts, as records say."""
    experts = problem.experts_per_rank
    rng = np.random.default_rng(SEED)
    drawn = [rng.multinomial(received, np.full(experts, 1 / experts)) for _ in range(DRAWS)]
    counts = min(drawn, key=lambda one: abs(int((one > 0).sum()) - touched))
    return RankLoad(tokens, tuple(map(int, counts)), remote)


def measured_point(point: Point, record: dict[str, Any], gpu: str) -> Iterator[Predicted]:
    """Those of a point: of its slowest rank."""
    problem, slowest = point.problem, record["slowest_rank"]
    load = recorded_load(problem, point.tokens, slowest["received"], slowest["touched"], slowest["remote"])
    for variant, timed in record["variants"].items():
        if not variant.startswith("block_m"):  # FP8 weights beside packed ones
            continue
        config, us = read_variant(variant, problem, record["num_sms"]), timed["us"]
        model = Subject.of(config, load).predict(calibration_of(gpu)).us
        yield Predicted(f"{point.preset} {point.tokens}", variant, us["median"], model, us["low"], us["high"])


def published(fitted: bool, most_tokens: int = ANY, least_tokens: int = 0) -> Iterator[Predicted]:
    """DeepGEMM's kernel, of the times that were fitted on or of the others."""
    found = json.loads((HERE / "published_times.json").read_text())
    calibration = beside_ours(calibration_of(found["gpu"]), found["longer_us"])
    for group in (one for one in found["groups"] if one["fitted"] == fitted):
        for text, us in group["us"].items():
            tokens = int(text)
            if least_tokens <= tokens <= most_tokens:
                problem = published_problem(group, tokens)
                subject = subject_of(problem, RankLoad.uniform(problem, tokens), NUM_SMS)
                yield Predicted(f"{group['host']}, {shape_name(group)}", text, us, subject.predict(calibration).us, us, us)


def profiled() -> Iterator[Predicted]:
    """DeepGEMM's kernels on one rank under a profiler, by recipe and BLOCK_K; nothing is fitted to them."""
    found = json.loads((HERE / "published_times.json").read_text())
    calibration, given = beside_ours(calibration_of(found["gpu"]), found["longer_us"]), found["profiled"]
    for name, us in given["us"].items():
        recipe, block_k = name.split()
        problem = preset(given["preset"]).problem(given["tokens"], num_ranks=1, recipe=recipe)
        load = RankLoad.uniform(problem, given["tokens"])
        packed = problem.formats.packs_activations
        subject = packed_subject(problem, load, NUM_SMS, int(block_k)) if packed else subject_of(problem, load, NUM_SMS)
        yield Predicted(given["preset"], name, us, subject.predict(calibration).us, us, us)


NUM_SMS = 148


def published_problem(group: dict[str, Any], tokens: int) -> Problem:
    """A preset's layer, or one of a shape that is given in numbers."""
    ranks = group["ranks"]
    if "preset" in group:
        return preset(group["preset"]).problem(tokens, num_ranks=ranks)
    hidden, intermediate, experts, topk = group["shape"]
    return Problem(hidden, intermediate, experts, topk, ranks, tokens)


def shape_name(group: dict[str, Any]) -> str:
    """flash, or H4096 I1024 E512 top10."""
    if "preset" in group:
        return str(group["preset"])
    return "H{} I{} E{} top{}".format(*group["shape"])


def rms(some: Iterable[Predicted]) -> float:
    """Root of the mean square of the errors, as logarithms."""
    errors = [log(one.model / one.us) ** 2 for one in some]
    return exp(sqrt(sum(errors) / len(errors))) - 1


@dataclass(frozen=True)
class Pairs:
    """Configurations of one point that differ by more than their repeats: how many the model has in the right order, and of those that it
    tells apart (prediction/prediction.py)."""

    right: int
    all: int
    right_preferred: int
    preferred: int


def pairs(some: Iterable[Predicted]) -> Pairs:
    """Of all points together."""
    groups = defaultdict(list)
    for one in some:
        groups[one.group].append(one)
    apart = [(a, b) for group in groups.values() for a, b in combinations(group, 2) if a.low > b.high or b.low > a.high]
    right = [(a.us < b.us) == (a.model < b.model) for a, b in apart]
    preferred = [is_right for is_right, (a, b) in zip(right, apart, strict=True) if prefers(a.model, b.model) is not None]
    return Pairs(sum(right), len(right), sum(preferred), len(preferred))


def rows(cells: Iterable[Sequence[str]], headings: Sequence[str]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *cells))


def points_table(some: Iterable[Predicted]) -> str:
    """A line per point."""
    cells = ([one.group.capitalize(), f"{one.us:.0f}", f"{one.model:.0f}", f"{one.error:+.1%}"] for one in some)
    return rows(cells, ("Point, tokens per rank", "measured, us", "model, us", "error"))


def profiled_table(some: Iterable[Predicted]) -> str:
    """A line per kernel."""
    named = ((one.name.split(), one) for one in some)
    cells = ([f"`{recipe}`", block_k, f"{one.us:.0f}", f"{one.model:.0f}", f"{one.error:+.1%}"] for (recipe, block_k), one in named)
    return rows(cells, ("Recipe", "BLOCK_K", "profiled, us", "model, us", "error"))


def pairs_table(some: Sequence[Predicted]) -> str:
    """A line per preset."""
    cells = []
    for name in dict.fromkeys(one.group.split()[0] for one in some):
        mine = [one for one in some if one.group.startswith(name)]
        found = pairs(mine)
        cells.append(
            [
                name.capitalize(),
                str(len(mine)),
                f"{rms(mine):.1%}",
                f"{found.right} of {found.all}",
                f"{found.right_preferred} of {found.preferred}",
            ]
        )
    headings = ("Preset", "configurations", "rms", "pairs apart in the right order", "of those that differ by 5 % in the model")
    return rows(cells, headings)


def published_table(some: Iterable[Predicted]) -> str:
    """A line per group, with the model's errors by tokens."""
    groups = defaultdict(list)
    for one in some:
        groups[one.group].append(one)
    cells = (
        [name, f"{rms(group):.1%}", ", ".join(f"{one.name}: {one.us:.0f} ({one.error:+.0%})" for one in group)]
        for name, group in groups.items()
    )
    return rows(cells, ("Hosts and shape", "rms", "tokens per rank: published us (error of the model)"))


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=ANY, help="points of at most so many tokens per rank")
    most = parser.parse_args().tokens
    points, variants = list(measured(POINTS, most)), list(measured(VARIANTS, most))
    packed = list(measured(PACKED, min(most, PACKED_TOKENS)))
    print(points_table(points), f"\nrms {rms(points):.1%}\n", pairs_table(variants), "", pairs_table(packed), sep="\n")
    for fitted in (True, False):
        found = list(published(fitted, most))
        print(f"\n{published_table(found)}\n\n{len(found)} times, rms {rms(found):.1%}")
    print(f"\n{profiled_table(profiled())}")


if __name__ == "__main__":
    main()
