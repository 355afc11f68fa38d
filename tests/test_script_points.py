"""Points of scripts in worker processes: what is printed of each, and the file that has them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megamoe_dsl.bench.point import Point
from script_points import record_points


def work(rank: int, points: list[Point], report: Callable[[int, dict[str, Any]], None]) -> None:
    for index, point in enumerate(points):
        if point.tokens == 2:
            raise ValueError("hung")
        report(index, {"us": point.tokens})


@pytest.mark.usefixtures("cpu_group")
def test_a_failure_is_a_line_and_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point("flash", tokens, ranks) for ranks, tokens in ((1, 1), (1, 2), (2, 3))]
    records = record_points(work, points, tmp_path / "out", "toy", lambda record: f"{record['us']} us", 60.0, 0.1)
    (file,) = (tmp_path / "out").glob("toy-*.json")
    assert [one["name"] for one in records] == [point.name for point in points] and json.loads(file.read_text())["records"] == records
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["1 us", f"{points[1].name}: FAILED: rank 0: ValueError: hung", "3 us", f"wrote {file}"]
