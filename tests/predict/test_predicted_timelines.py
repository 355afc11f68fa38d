"""Timelines of a launch of two workers whose times are written here: lanes, the file for Perfetto, and pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megamoe_dsl.pictures import Bar, BarChart, Lane
from prediction.calibration import calibration_of
from prediction.engine import Run
from prediction.prediction import Launched
from prediction.timeline import draw, lanes_of, perfetto


def subject(tokens: int) -> Any:
    return SimpleNamespace(load=SimpleNamespace(tokens=tokens))


STAMPS = [[4.0, 5.0, 9.0, 9.5, 11.0], [4.0, 4.0, 8.0, 8.0, 10.0], [9.0, 12.0, 15.0, 15.0, 18.0]]
RUN = Run(18.0, 132, np.array([0, 0, 1]), np.array([0, 1, 0]), np.array(STAMPS), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
FIGURES: dict[str, Any] = {"clock": 1.5, "us": 20.25, "watts": 400.0, "run": RUN, "start": 2.0, "pulled": 3.5, "combine_bytes": 0.0}
LAUNCHED = Launched(subject(8), calibration_of("NVIDIA H200"), **FIGURES)

ALL = (Lane("dispatch", (Bar(0, 2, "dispatch", "count"), Bar(2, 3.5, "pull", "pull"), Bar(18, 20.25, "combine", "combine")), group="all"),)
FIRST = (
    Lane(
        "tensor core",
        (
            *(Bar(4, 5, "wait", "wait Linear1"), Bar(5, 9, "Linear1", "multiply Linear1")),
            *(Bar(9, 12, "wait", "wait Linear2"), Bar(12, 15, "Linear2", "multiply Linear2")),
        ),
        group="worker 0",
    ),
    Lane("epilogue", (Bar(9.5, 11, "Linear1", "epilogue Linear1"), Bar(15, 18, "Linear2", "epilogue Linear2")), group="worker 0"),
)
SECOND = (
    Lane("tensor core", (Bar(4, 8, "Linear1", "multiply Linear1"),), group="worker 1"),
    Lane("epilogue", (Bar(8, 10, "Linear1", "epilogue Linear1"),), group="worker 1"),
)


@pytest.mark.parametrize(("workers", "lanes"), [(0, ALL), (1, ALL + FIRST), (2, ALL + FIRST + SECOND), (8, ALL + FIRST + SECOND)])
def test_lanes_are_of_all_and_of_the_first_workers(workers: int, lanes: tuple[Lane, ...]) -> None:
    """What takes no time has no bar: the second worker waits for nothing."""
    assert lanes_of(LAUNCHED, workers) == lanes


def test_perfetto_has_a_process_per_worker_and_a_thread_per_role() -> None:
    found = json.loads(perfetto(LAUNCHED))
    names = [("all", 0), ("worker 0", 1), ("worker 1", 2)]
    assert found["traceEvents"][:3] == [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for name, pid in names]
    spans = [(one["ph"], one["pid"], one["tid"], one["name"], one["ts"], one["dur"]) for one in found["traceEvents"][3:]]
    assert spans == [
        *(("X", 0, "dispatch", name, *times) for name, *times in (("count", 0, 2), ("pull", 2, 1.5), ("combine", 18, 2.25))),
        *(("X", 1, "tensor core", f"{what} Linear1", *times) for what, *times in (("wait", 4, 1), ("multiply", 5, 4))),
        *(("X", 1, "tensor core", f"{what} Linear2", *times) for what, *times in (("wait", 9, 3), ("multiply", 12, 3))),
        *(("X", 1, "epilogue", "epilogue Linear1", 9.5, 1.5), ("X", 1, "epilogue", "epilogue Linear2", 15, 3)),
        *(("X", 2, "tensor core", "multiply Linear1", 4, 4), ("X", 2, "epilogue", "epilogue Linear1", 8, 2)),
    ]
    assert found["otherData"]["source"] == "predicted, not measured"


def test_a_picture_has_a_chart_per_launch() -> None:
    longer = replace(LAUNCHED, subject=subject(64), us=30.0, clock=1.25)
    one, both = draw([LAUNCHED], "NVIDIA H200"), draw([LAUNCHED, longer], "NVIDIA H200")
    assert (one.title, both.title) == ("Timeline of one launch", "Timelines of 2 launches")
    assert one.charts == (BarChart(ALL + FIRST + SECOND, 20.25, "µs"),)
    assert [(chart.extent, chart.unit) for chart in both.charts if isinstance(chart, BarChart)] == [(20.25, "µs"), (30, "µs")]
    said = "Predicted, not measured, for NVIDIA H200: 8 tokens a rank, 20 µs at 1.50 GHz"
    assert one.note.startswith(f"{said}. ") and both.note.startswith(f"{said}; 64 tokens a rank, 30 µs at 1.25 GHz. ")
    assert "4 of 132 are drawn" in both.note
