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
    """Whether it has a name and, where variants were timed, a point and their times."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return False
    if "variants" not in record:
        return True
    timed = record["variants"]
    return is_point(record.get("point")) and isinstance(timed, dict) and all(map(is_timed, timed.values()))


def is_point(values: Any) -> bool:
    """Whether they are the fields of a `Point`."""
    try:
        point = Point(**values)
        point.problem.check_num_tokens(point.tokens, "tokens")
    except (ValueError, TypeError):
        return False
    return True


def is_timed(times: Any) -> bool:
    """Whether they are a variant's: of a check, which may be missing, back to back, and as a graph unless that is None."""
    if not isinstance(times, dict) or not isinstance(times.get("check") or {}, dict) or "graph_us" not in times:
        return False
    return is_spread(times.get("us")) and (times["graph_us"] is None or is_spread(times["graph_us"]))


def is_spread(times: Any) -> bool:
    return isinstance(times, dict) and all(is_time(times.get(name)) for name in ("median", "low"))


def is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < inf
