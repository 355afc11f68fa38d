"""Times of candidates (bench/timing.py), with stand-ins for a GPU's events, graphs and other ranks.  No time is held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from megamoe_dsl.bench import timing
from megamoe_dsl.bench.timing import Times
from ranks_in_threads import on_ranks


class Event:
    """Notes when it is recorded; from one to another it is a millisecond."""

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def record(self) -> None:
        self.noted.append("|")

    def elapsed_time(self, end: object) -> float:
        assert end is not self
        return 1.0


class Graph:
    """Keeps what is launched while it is captured, and launches it again."""

    noted: ClassVar[list[str]] = []
    made: ClassVar[list[dict[str, bool]]] = []

    def __init__(self, **options: bool) -> None:
        self.made.append(options)
        self.kept: list[str] = []

    def replay(self) -> None:
        self.noted.append(f"<{''.join(self.kept)}>")


@contextmanager
def captured(graph: Graph) -> Iterator[None]:
    before = len(Graph.noted)
    yield
    graph.kept, Graph.noted[before:] = Graph.noted[before:], []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was recorded (|), waited for (.) and replayed (<launches>); candidates may note themselves."""
    Graph.noted, Graph.made = [], []
    for name, one in {
        "Event": lambda enable_timing: Event(Graph.noted),
        "synchronize": lambda: Graph.noted.append("."),
        "CUDAGraph": Graph,
        "graph": captured,
    }.items():
        monkeypatch.setattr(torch.cuda, name, one)
    monkeypatch.setattr(timing, "over_ranks", list)
    return Graph.noted


def test_timing_takes_the_slowest_rank_and_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.over_ranks([3.0, 1.0, 2.0], device="cpu") == Times(2.0, 1.0, 3.0)
    assert not torch.distributed.is_initialized()
    repeats = [3.0, 1.0, 2.0, 9.0], [5.0, 4.0, 1.0, 1.0]
    assert on_ranks(2, lambda rank: timing.over_ranks(repeats[rank], "cpu"), monkeypatch) == [Times(4.5, 2.0, 9.0)] * 2


def test_candidates_take_turns_in_changing_order_and_warm_up_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(ran))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "over_ranks", list)
    repeats = timing.time_back_to_back({name: partial(ran.append, name) for name in "abc"}, 2)
    assert repeats == dict.fromkeys("abc", [500.0] * timing.REPEATS)  # microseconds of each of two launches
    turns = ["".join(ran[i : i + 6]) for i in range(0, len(ran), 6)]  # once uncounted, then measured
    assert all(turn == f"{turn[:2]}|{turn[:2]}|" and turn[0] == turn[1] for turn in turns)
    assert [timing.launches_of(tokens) for tokens in (2048, 2049)] == [20, 8]
    rounds = ["".join(turn[0] for turn in turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert {"".join(sorted(one)) for one in rounds} == {"abc"} and len(set(rounds)) > 2
    here = ran.copy()
    ran.clear()
    timing.time_back_to_back({name: partial(ran.append, name) for name in "abc"}, 2)
    assert ran == here, "every rank runs the same candidate"


def test_ranks_wait_for_their_devices_for_each_other_and_for_what_that_launched(noted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timing.synchronize()
    assert noted == ["."]
    noted.clear()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "barrier", lambda: noted.append("barrier"))
    timing.synchronize()
    assert noted == [".", "barrier", "."]


def test_a_repeat_begins_where_the_device_rests_and_ends_with_it(noted: list[str]) -> None:
    """A millisecond of five launches are 200 microseconds of each."""
    assert timing.measure(lambda: noted.append("run"), 5) == 200.0
    assert noted == [".", "run", "|", "run", "|", "."]


def test_a_graph_has_so_many_launches(noted: list[str]) -> None:
    """Made while nothing else runs."""
    graph: Any = timing.graph_of(partial(noted.append, "a"), 3, keep_graph=True)
    assert (noted, graph.kept, Graph.made) == (["."], ["a"] * 3, [{"keep_graph": True}])
    alone: Any = timing.graph_of(partial(noted.append, "a"))
    assert alone.kept == ["a"] and Graph.made[1:] == [{}]


def test_graphs_take_turns_after_each_was_uploaded(noted: list[str]) -> None:
    """A replay, which is timed, has ten launches."""
    found = timing.time_graphs({name: partial(noted.append, name) for name in "ab"}, repeats=2)
    assert found == {"a": [100.0] * 2, "b": [100.0] * 2}
    a, b = f"<{'a' * 10}>", f"<{'b' * 10}>"
    upload, turns = noted[: 2 + 4], noted[2 + 4 :]
    assert upload == [".", ".", ".", a, ".", b]  # two captures, two uploads
    assert sorted("".join(turns[i : i + 6]) for i in range(0, len(turns), 6)) == [f".{one}|{one}|." for one in (a, a, b, b)]


def test_earlier_batches_are_loaded_and_launched_one_by_one(noted: list[str]) -> None:
    """Eight, of seeds that no point is measured with; by all candidates."""

    def draw(seed: int) -> Any:
        return f"{seed}"

    launches = [partial(noted.append, "a"), partial(noted.append, "b")]
    timing.run_earlier_batches(draw, noted.append, launches)  # type: ignore[arg-type]
    assert noted == [".", *(one for seed in range(1001, 1009) for one in (f"{seed}", "a", "b"))]
