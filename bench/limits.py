"""How much faster than the baseline a launch could be: the tables of docs/lab/hopper.md#limits, from records.

python bench/limits.py

With few tokens a launch cannot end before its weights are read, which the ceiling says.  With many it has both linears to compute, whose
time and energy alone bench/energy.py measures with --linears.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.variant import read_variant
from megamoe_dsl.hardware.operand_tile import BLOCK_K
from megamoe_dsl.kernels.moe.sm90.config import NUM_SMS
from prediction.calibration import calibration_of
from prediction.launch import RankLoad
from prediction.prediction import Subject
from result_archive import read_record

RESULTS = Path(__file__).parent / "results"
POINTS = tuple(f"mega_moe_sm90-time-20261122-{name}" for name in ("075037", "075127", "163649", "163802", "165327", "165419"))
"""Every shape beside the baseline, 1 to 8192 tokens."""
LINEARS = tuple(
    f"energy-20261122-{name}"
    for name in ("193005", "194610", "193055", "194643", "193144", "220454", "220558", "193218", "220725", "220829")
)
FEW_TOKENS = (8, 64)
READ = f"""\
| Shape | {" | ".join(f"{tokens} tokens: ours | 0.2.5 | reading | 0.2.5 / ours | at most" for tokens in FEW_TOKENS)} |
|---|{"---|" * (5 * len(FEW_TOKENS))}"""
COMPUTED = """\
| Shape, tokens | us: ours | 0.2.5 | linears | 0.2.5 / ours | at most | joules: ours | 0.2.5 | linears | 0.2.5 / ours | at most |
|---|---|---|---|---|---|---|---|---|---|---|"""

SHORT = """\
| Shape, tokens | K blocks of Linear2 | its us | half of Linear1's | more, of the launch | its J | half of Linear1's | more, of the launch |
|---|---|---|---|---|---|---|---|"""
BUDGET = """\
| Shape, tokens | multiplying | of which rows without a token | HBM read | HBM written | what is always there | sum | measured |
|---|---|---|---|---|---|---|---|"""
PRODUCTS = 128 * 256 * 128
"""Of a K block of a whole tile, which the model counts energy in."""
GPU = "NVIDIA H200"


def records_of(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Of bench/results and its archives."""
    for name in names:
        yield from json.loads(read_record(RESULTS, name))["records"]


def label(point: dict[str, Any]) -> str:
    """Of a shape."""
    return str(point["preset"]).capitalize()


def reading(records: Iterable[dict[str, Any]]) -> str:
    """Points of few tokens: what reading the weights takes, and the ratio of a launch that takes no longer."""
    shapes: dict[str, dict[int, str]] = {}
    for record in records:
        best, least, theirs = record["best"]["us"], record["slowest_rank"]["bound_us"], record["baseline"]["us"]["median"]
        cells = f"{best:.0f} | {theirs:.0f} | {least:.0f} | {theirs / best:.2f} | {theirs / least:.2f}"
        shapes.setdefault(label(record["point"]), {})[record["point"]["tokens"]] = cells
    return "\n".join([READ, *(f"| {shape} | {' | '.join(cells[tokens] for tokens in FEW_TOKENS)} |" for shape, cells in shapes.items())])


def computing(records: Sequence[dict[str, Any]]) -> str:
    """Points of many tokens: time and joules of a rank's launch, and of its linears alone."""
    lines = [COMPUTED]
    for record in records:
        ranks = record["point"]["ranks"]
        cells = []
        for kind, unit, digits in (("graph_us", 1, 0), ("joules", ranks, 3)):
            ours, theirs = (record[kind][name]["median"] / unit for name in ("ours", "baseline"))
            linears = sum(one[kind]["ours"]["median"] for one in record["linears"].values()) / unit
            cells += [f"{value:.{digits}f}" for value in (ours, theirs, linears)] + [f"{theirs / ours:.2f}", f"{theirs / linears:.2f}"]
        lines.append(f"| {label(record['point'])} {record['point']['tokens']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_k(records: Iterable[dict[str, Any]]) -> str:
    """Linear2 has half of Linear1's multiplications and weights, in tiles of fewer K blocks: what it takes beyond half of Linear1, and
    which share of the whole launch that is."""
    lines = [SHORT]
    for record in records:
        point = Point(**record["point"])
        cells = [f"{point.problem.intermediate // BLOCK_K}"]
        for kind, unit, digits in (("graph_us", 1, 0), ("joules", point.ranks, 3)):
            first, second = (record["linears"][name][kind]["ours"]["median"] / unit for name in ("moe_fc1", "moe_fc2"))
            more = (second - first / 2) / (record[kind]["ours"]["median"] / unit)
            cells += [f"{second:.{digits}f}", f"{first / 2:.{digits}f}", f"{more:.1%}"]
        lines.append(f"| {label(record['point'])} {point.tokens} | {' | '.join(cells)} |")
    return "\n".join(lines)


def budget(records: Iterable[dict[str, Any]]) -> str:
    """Joules of a launch by the model of performance (docs/explanation/predict.md), beside those that were measured."""
    calibration, lines = calibration_of(GPU), [BUDGET]
    for record in records:
        point = Point(**record["point"])
        problem, remote = point.problem, point.remote
        config = read_variant(record["variant"], problem, NUM_SMS)
        found = Subject.of(config, RankLoad.uniform(problem, point.tokens, remote)).predict(calibration)
        multiplying = found.run.energy * calibration.multiply_energy * (found.clock / calibration.clock) ** calibration.energy_exponent
        products = 3 * problem.hidden * problem.intermediate * problem.topk * point.tokens
        empty = multiplying * (1 - products / PRODUCTS / found.run.energy)
        moved = [found.run.hbm_bytes, found.run.written + found.combine_bytes]
        parts = [multiplying, *(one * calibration.hbm_energy for one in moved), calibration.static_power * found.us * 1e-6]
        measured = record["joules"]["ours"]["median"] / point.ranks
        cells = [f"{value:.3f}" for value in (parts[0], empty, *parts[1:], sum(parts), measured)]
        lines.append(f"| {label(record['point'])} {point.tokens} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    found = list(records_of(LINEARS))
    print(reading(records_of(POINTS)), computing(found), short_k(found), budget(found), sep="\n\n")


if __name__ == "__main__":
    main()
