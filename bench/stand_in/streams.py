"""Streams and graphs of a simulated GPU: a launch waits in its stream until somebody looks at what the stream did; then all that wait run
together, so that kernels of different streams may wait for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any

from megamoe_dsl.sim import Launch


class Streams:
    """run      takes all launches at once; those of one rank, which here is a stream, follow one another
    current  the stream that launches go to, a number; 0 is the default one
    """

    def __init__(self, run: Callable[[list[Launch]], None]) -> None:
        self.run, self.current = run, 0
        self._numbers = count(1)
        self._waiting: list[tuple[int, Launch]] = []
        self._captured: list[Launch] | None = None
        self._used: list[Any] = []

    @property
    def capturing(self) -> bool:
        """Whether launches go into a graph."""
        return self._captured is not None

    def new(self) -> int:
        """A stream of its own."""
        return next(self._numbers)

    def launch(self, launch: Launch) -> None:
        """Into the current stream, or into the graph that is captured."""
        if self._captured is not None:
            self._captured.append(launch)
        else:
            self._waiting.append((self.current, launch))

    def look(self) -> None:
        """Somebody reads or writes memory in the current stream: what waits there is over first, and what that may wait for."""
        if any(stream == self.current for stream, _ in self._waiting):
            self.settle()

    def settle(self) -> None:
        """Runs everything that waits.  Raises SimError."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            order = list(dict.fromkeys(stream for stream, _ in waiting))
            self.run([replace(one, rank=order.index(stream)) for stream, one in waiting])
            self._used.clear()

    def use(self, tensor: Any) -> None:
        """A launch may get the address of this tensor: its memory lives until that has run, as torch's allocator sees to on a GPU."""
        self._used.append(tensor)

    @contextmanager
    def into(self, stream: int) -> Iterator[None]:
        """Inside, this stream is the current one."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def captured(self, launches: list[Launch]) -> Iterator[None]:
        """Inside, launches go into a list."""
        self._captured = launches
        try:
            yield
        finally:
            self._captured = None


def stream_classes(streams: Streams) -> dict[str, Any]:
    """torch.cuda's classes and context managers of streams, events and graphs, by name.

    Of what is captured only launches are replayed.  No event knows a time: what lies between two of them is NaN."""

    class SimulatedStream:
        device_index = 0

        def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
            self.cuda_stream = streams.new() if number is None else number
            self._inside: list[Any] = []

        def __enter__(self) -> SimulatedStream:
            self._inside.append(streams.into(self.cuda_stream))
            self._inside[-1].__enter__()
            return self

        def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
            self._inside.pop().__exit__(kind, value, trace)

        def synchronize(self, *_: Any) -> None:
            streams.settle()

        wait_stream = wait_event = record_event = synchronize

        def query(self) -> bool:
            return True

    class SimulatedEvent:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.cuda_event = 1

        def elapsed_time(self, _: Any) -> float:
            return float("nan")

        def record(self, *_: Any) -> None:
            streams.settle()

        synchronize = wait = record

        def query(self) -> bool:
            return True

    class SimulatedGraph:
        def __init__(self) -> None:
            self.launches: list[Launch] = []

        def replay(self) -> None:
            for one in self.launches:
                streams.launch(one)

        def reset(self) -> None:
            self.launches.clear()

    return {
        "Stream": SimulatedStream,
        "Event": SimulatedEvent,
        "CUDAGraph": SimulatedGraph,
        "graph": lambda graph, *_, **__: streams.captured(graph.launches),
        "stream": lambda stream: streams.into(stream.cuda_stream),
        "current_stream": lambda *_: SimulatedStream(number=streams.current),
        "default_stream": lambda *_: SimulatedStream(number=0),
        "synchronize": lambda *_: streams.settle(),
        "is_current_stream_capturing": lambda: streams.capturing,
    }
