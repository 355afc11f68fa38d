"""Tables of the records of bench/training.py: times and MiB of each way to compute a layer, and counters of its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

OURS, DENSE = "moe", "dense"
"""The way that others are compared with, and a dense product of torch."""


def table(records: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    """Of the forward pass, then of both, in this order of shapes; or of counters."""
    if "point" not in records[0]:
        yield from lines_of([named(one["name"]) | counter_cells(one) for one in records])
        return
    records = sorted(records, key=lambda one: (names.index(one["point"].split(":")[0]), int(one["point"].split(":")[1])))
    for cells in (forward_cells, both_cells):
        points = (dict(zip(("Shape", "Tokens"), one["point"].split(":"), strict=True)) for one in records)
        yield from lines_of([point | cells(one) for point, one in zip(points, records, strict=True)])
        yield ""


def lines_of(rows: list[dict[str, str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows))]


def named(kernel: str) -> dict[str, str]:
    point, name = kernel.split(" ", 1)
    return dict(zip(("Shape", "Tokens", "Kernel"), (*point.split(":"), name), strict=True))


def counter_cells(record: dict[str, Any]) -> dict[str, str]:
    names = {"us": "us", "tensor_core": "Tensor core, %", "dram": "HBM, %", "l2_sectors": "L2, %", "l2_hits": "L2 hits, %", "mhz": "MHz"}
    return {title: f"{record[name]:.0f}" for name, title in names.items()}


def mib(record: dict[str, Any], title: str, what: str) -> dict[str, str]:
    return {f"{title}, `{way}`": f"{used[what] / 2**20:.0f}" for way, used in record["bytes"].items()}


def us_of(record: dict[str, Any], what: str) -> dict[str, float]:
    """Medians by way."""
    return {way: record["us"][f"{way} {what}"]["median"] for way in record["bytes"]}


def forward_cells(record: dict[str, Any]) -> dict[str, str]:
    return {f"`{way}`": f"{us:.0f}" for way, us in us_of(record, "forward").items()} | mib(record, "MiB kept", "kept")


def both_cells(record: dict[str, Any]) -> dict[str, str]:
    us, own = us_of(record, "both"), record["us"][f"{OURS} both"]
    spread = " to ".join(f"{own[end] / own['median']:.2f}" for end in ("low", "high"))
    times = {f"`{way}`": f"{one:.0f}" for way, one in us.items()}
    ratios = {f"`{way}` / `{OURS}`": f"**{one / us[OURS]:.2f}**" for way, one in us.items() if way != OURS}
    rates = {"TFLOPS": f"{record['tflops'][f'{OURS} both']:.0f}", f"`{DENSE}`": f"{record['tflops'][DENSE]:.0f}"}
    return {**times, "spread": spread, **ratios, **rates, **mib(record, "MiB", "peak")}
