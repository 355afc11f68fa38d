"""Results of a run: the JSON file of its records with command, versions and date, and records as text."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..artifact.cache import require_writable
from ..artifact.store import source_digest
from ..json_file import FileError, read_json_object
from ..kernels.moe.roofline import measured_gpu
from ..kernels.registry import find_kernel
from ..tuned import DEFAULT_GPU
from .point import Point


def are_of_layers(records: Sequence[dict[str, Any]]) -> bool:
    """Whether each record has a name and, if variants were timed, a point and times of each variant (`is_timed`).  Raises LookupError,
    TypeError, ValueError or AttributeError for other values."""
    points = [Point(**one["point"]) for one in records if "variants" in one]
    for point in points:
        point.problem.check_num_tokens(point.tokens, "tokens")
    return all(isinstance(one["name"], str) and all(map(is_timed, one.get("variants", {}).values())) for one in records)


def is_timed(times: Any) -> bool:
    """Whether a variant's times have a median and a fastest repeat, positive numbers, back to back and, unless None, as a graph."""
    spreads = [times["us"], *([] if times["graph_us"] is None else [times["graph_us"]])]
    return isinstance(times.get("check") or {}, dict) and all(0 < one[name] < inf for one in spreads for name in ("median", "low"))


@dataclass(frozen=True)
class Results:
    """Records of the points of a run; `name` is the file's, `gpu` torch's name of the GPUs."""

    name: str
    gpu: str
    records: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path, fits: Callable[[Sequence[dict[str, Any]]], object] = are_of_layers) -> Results:
        """Raises `FileError` if `fits` is false for the records, or raises."""
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            found = read_json_object(path)
            results = cls(path.name, found["gpu"], tuple(found["records"]))
            if isinstance(results.gpu, str) and fits(results.records):
                return results
        raise FileError(path, "must be a JSON file that `megamoe bench` wrote")


class Recorded:
    """Collects the records of a run and rewrites its file, `out`/`kind`-DATE.json, after each; `sites` as of `heading`.  Raises
    `ProblemError` if `out` cannot be written."""

    def __init__(self, out: Path, kind: str, *sites: Path | str | None) -> None:
        require_writable("out", out)
        self.path, self.head, self.records = result_path(out, kind), heading(*sites), list[dict[str, Any]]()

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        self.records.append(record)
        write(self.path, self.head, self.records)
        return record

    def save(self, name: str, record: dict[str, Any], text_of: Callable[[dict[str, Any]], str]) -> None:
        """Adds the record of a point, and prints it, or why it failed."""
        added = self.add({"name": name, **record})
        print(f"{name}: FAILED: {record['error']}" if "error" in record else text_of(added), flush=True)

    def done(self) -> Results:
        """All records; prints the path of the file."""
        print(f"wrote {self.path}", flush=True)
        return Results(self.path.name, self.head["gpu"], tuple(self.records))


def passed(record: dict[str, Any]) -> bool:
    """Whether a point ran without an error, and no check failed."""
    checks = [one["check"] for one in record.get("variants", {}).values()]
    return "error" not in record and all(check is None or check["passed"] for check in checks)


FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"']+/)*(?=[^\s/])""")


def result_path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"


def write(path: Path, head: dict[str, Any], records: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps({**head, "records": finite(records)}, indent=1) + "\n")


def finite(value: Any) -> Any:
    """The value with strings in place of NaN and infinities, which JSON cannot express."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def without_folders(text: str) -> str:
    """The text with absolute paths shortened to their last names, so that results do not disclose a machine's folders."""
    return FOLDERS.sub("", text)


def heading(*sites: Path | str | None) -> dict[str, Any]:
    """The head of a results file: date, command and versions."""
    command = [Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])]
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "command": command, **versions(*sites)}


def versions(*sites: Path | str | None) -> dict[str, Any]:
    """GPU, driver and software versions; `sites` are folders of other projects' packages, or None."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    software = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    sources = {"sources": source_digest(find_kernel("mega_moe")), "ceilings": measured_gpu(gpu or DEFAULT_GPU)}
    return {"gpu": gpu or "none", "gpus": torch.cuda.device_count(), "driver": driver, **software, **sources, "baseline": packages(*sites)}


def packages(*folders: Path | str | None) -> dict[str, str]:
    """Names and versions of the packages that are unpacked in folders; None has none."""
    found = distributions(path=[str(folder) for folder in folders if folder is not None])
    return {one.metadata["Name"]: one.version for one in found}


POINT = 28  # flash El32 EP2 R0.875 M=8192
COLUMNS = (
    *(("us", 8, 1), ("graph", 8, 1), ("TFLOPS", 7, 1), ("ceiling", 8, 0), ("of it", 6, 3), ("slowest", 8, 0), ("of it", 6, 3)),
    *(("TB/s", 5, 2), ("NVL GB/s", 8, 0), ("MiB", 6, 0)),
)
"""Headings of figures, widths, digits."""
HEADINGS = " ".join(["point".ljust(POINT), *(name.rjust(width) for name, width, _ in COLUMNS), f"{'check':16s} variant"])


def cell(value: float | str | None, width: int, digits: int) -> str:
    return (f"{value:.{digits}f}" if isinstance(value, float | int) else value or "-").rjust(width)


def trace_row(record: dict[str, Any]) -> str:
    """A traced launch: microseconds per warp of every activity, their share of the launch, and when it began and ended."""
    launch = record["launch_us"]
    lines = [f"{record['name']}: {launch:.1f} us from the first stamp to the last", f"{'':28s} us/warp  share  spans   from     to"]
    for role, activities in record["trace"].items():
        for name, one in activities.items():
            share = one["us"] / launch if launch else 0.0
            figures = f"{one['us']:8.1f} {share:6.3f} {one['spans']:6.1f} {one['first']:6.1f} {one['last']:6.1f}"
            lines.append(f"{role:14s} {name:22s}{figures}")
    return "\n".join(lines)


def timed_row(record: dict[str, Any]) -> str:
    """A timed point as a line; further variants on lines of their own."""
    best, work, slowest = record["best"], record["work"], record["slowest_rank"]
    lines = []
    for name in sorted(record["variants"], key=lambda one: record["variants"][one]["us"]["median"]):
        entry = record["variants"][name]
        us, graph = entry["us"]["median"], entry["graph_us"]["median"] if entry["graph_us"] else None
        check = entry["check"]
        verdict = (
            "not checked" if check is None else f"{'ok' if check['passed'] else 'WRONG'} {check['worst']:.2f} {check['same_bits']:.4f}"
        )
        figures = (
            *(us, graph, work["flop"] / us / 1e6, f"{work['bound_us']:.0f} {work['bound_by'][:4]}", work["bound_us"] / us),
            *(f"{slowest['bound_us']:.0f} {slowest['bound_by'][:4]}", slowest["bound_us"] / us),
            *(work["hbm_bytes"] / us / 1e6, work["nvlink_bytes"] / us / 1e3, record["symmetric_bytes"] / 2**20),
        )
        cells = [cell(value, width, digits) for value, (_, width, digits) in zip(figures, COLUMNS, strict=True)]
        lines.append(" ".join([(record["name"] if name == best["variant"] else "").ljust(POINT), *cells, verdict.ljust(16), name]))
    return "\n".join(lines)
