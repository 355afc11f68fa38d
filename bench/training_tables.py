"""Tables of the records of bench/training.py: times and MiB of each way to compute a layer, and counters of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from moe_layers.training_layers import QUACK, SCATTERMOE

DENSE = "dense"
"""A product of torch."""
KERNELS = {
    "forward": ("forward: gate and up", "forward: down", "sum of rows"),
    **{"rows": ("rows",), "tokens": ("tokens", "tokens: sum of rows"), "w1": ("W1",), "w2": ("W2",), DENSE: (DENSE,)},
    QUACK: tuple(f"sonic-moe: {one}" for one in ("gate and up", "down", "sum of rows", "rows", "W2", "W1", "tokens", "sum of rows")),
}
"""Those that count of a stage, in order."""
COUNTED = ("gemm", "Gemm", "topk_sum", "nvjet")
"""Parts of their names; the second is quack's, the last cuBLAS's."""
TITLES = {
    QUACK: "sonic-moe",
    SCATTERMOE: "ScatterMoE",
    "moe-fp8": "FP8",
    "moe-fp8-quantized": "FP8, quantized before",
    "moe-recompute": "recomputed",
    "moe-one-thread": "one thread",
    "nodes of one GPU": "nodes",
    "torch": "torch",
}
PASSES = ("forward", "backward", "both")


def table(records: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    """Of passes or of power, in this order of shapes; or of counters."""
    if "point" not in records[0]:
        yield from lines_of([named(one["name"]) | counter_cells(one) for one in records])
        return
    records = sorted(records, key=lambda one: (names.index(one["point"].split(":")[0]), int(one["point"].split(":")[1])))
    points = (dict(zip(("Shape", "Tokens"), one["point"].split(":"), strict=True)) for one in records)
    yield from lines_of([point | (power_cells if "joules" in one else cells)(one) for point, one in zip(points, records, strict=True)])


def lines_of(rows: list[dict[str, str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows))]


def named(kernel: str) -> dict[str, str]:
    point, name = kernel.split(" ", 1)
    return dict(zip(("Shape", "Tokens", "Kernel"), (*point.split(":"), name), strict=True))


def counter_cells(record: dict[str, Any]) -> dict[str, str]:
    names = {"us": "us", "tensor_core": "Tensor core, %", "dram": "HBM, %", "l2_sectors": "L2, %", "l2_hits": "L2 hits, %", "mhz": "MHz"}
    return {title: f"{record[name]:.0f}" for name, title in names.items()}


def power_cells(record: dict[str, Any]) -> dict[str, str]:
    """Both passes at the power cap and after a pause: microseconds, and how many times as long others take; joules, beside those of a dense
    product for as many FLOP."""
    joules, found = record["joules"], dict[str, str]()
    ways = first, *others = [way for way in joules if way != DENSE]
    for title, key in (("us", "us"), ("after a pause, us", "rested")):
        us = {way: one["median"] for way, one in record[key].items()}
        found |= by_way(ways, title, lambda way, us=us: f"{us[way]:.0f}")
        found |= by_way(others, f"{title.removesuffix('us')}/ `{first}`", lambda way, us=us: f"**{us[way] / us[first]:.2f}**")
    found |= by_way(ways, "J", lambda way: f"{joules[way]:.2f}")
    return found | {"J, dense": f"{joules[DENSE] * record['flop'] / record['dense_flop']:.2f}"}


def by_way(ways: Sequence[str], what: str, cell: Callable[[str], str]) -> dict[str, str]:
    return {f"{what}, {TITLES.get(way, f'`{way}`')}": cell(way) for way in ways}


def cells(record: dict[str, Any]) -> dict[str, str]:
    """Microseconds of each pass; the spread of the first way, and how many times as long others take; TFLOPS of both, and the first way's
    as a part of a dense product's; MiB kept between the passes, and at most allocated; the largest distance from float64 in percent of
    ways in FP8."""
    us, used, (first, *others) = record["us"], record["bytes"], record["bytes"]
    own, ways = us[f"{first} both"], [first, *others]
    found: dict[str, str] = {}
    for one in PASSES:
        timed = [way for way in ways if f"{way} {one}" in us]
        found |= by_way(timed, one, lambda way, one=one: f"{us[f'{way} {one}']['median']:.0f}")
    found["spread"] = " to ".join(f"{own[end] / own['median']:.2f}" for end in ("low", "high"))
    found |= by_way(others, f"/ `{first}`", lambda way: f"**{us[f'{way} both']['median'] / own['median']:.2f}**")
    rates = record["tflops"]
    found |= by_way(ways, "TFLOPS", lambda way: f"{rates[f'{way} both']:.0f}")
    found["of dense"] = f"{rates[f'{first} both'] / rates[DENSE]:.2f}"
    found |= by_way(ways, "MiB kept", lambda way: f"{used[way]['kept'] / 2**20:.0f}")
    found |= by_way(ways, "MiB", lambda way: f"{used[way]['peak'] / 2**20:.0f}")
    scaled = [way for way in ways if "fp8" in way]
    return found | by_way(scaled, "% off", lambda way: f"{100 * max(record['errors'][way].values()):.1f}")
