"""What a timed run found: the contents of one file of bench/results."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ..json_file import FileError, read_json_object
from .point import Point


class ResultsError(ValueError):
    """A file is not one that a run wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: must be a JSON file that `megamoe bench` wrote")


@dataclass(frozen=True)
class Results:
    """Records of the points of a run; `name` is the file's, `gpu` torch's name of the GPUs."""

    name: str
    gpu: str
    records: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Results:
        try:
            found = read_json_object(path)
            gpu, records = found["gpu"], tuple(found["records"])
        except (FileError, LookupError, TypeError):
            raise ResultsError(path) from None
        if not isinstance(gpu, str) or not all(map(is_record, records)):
            raise ResultsError(path)
        return cls(path.name, gpu, records)


def passed(record: dict[str, Any]) -> bool:
    """Whether a point ran, and no kernel was found wrong."""
    checks = [one["check"] for one in record.get("variants", {}).values()]
    return "error" not in record and all(check is None or check["passed"] for check in checks)


def is_record(record: Any) -> bool:
    """Whether it has a name and, where variants were timed, a point and their times: of a check, which may be missing, back to back, and as
    a graph unless that is None."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return False
    timed = record.get("variants", {})
    return isinstance(timed, dict) and all(map(is_timed, timed.values())) and ("variants" not in record or is_point(record.get("point")))


def is_point(values: Any) -> bool:
    """Whether they are the fields of a `Point`."""
    try:
        point = Point(**values)
        point.problem.check_num_tokens(point.tokens, "tokens")
    except (ValueError, TypeError):
        return False
    return True


def is_timed(times: Any) -> bool:
    """Whether they are a variant's; repeats are summed up by their median and the fastest, in microseconds, finite and positive."""
    if not isinstance(times, dict) or not isinstance(times.get("check") or {}, dict) or "graph_us" not in times:
        return False
    spreads = [times.get("us"), *([] if times["graph_us"] is None else [times["graph_us"]])]
    values = [one.get(name) if isinstance(one, dict) else None for one in spreads for name in ("median", "low")]
    return all(isinstance(one, int | float) and 0 < one < inf for one in values)
