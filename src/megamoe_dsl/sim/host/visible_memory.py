"""The global memory of a run: the spans of the arrays that kernels are given, and of those that they reach through pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import SimError
from ..memory import Bytes, GlobalMemory
from .device_array import ByteSpan


def visible_memory(arrays: Iterable[tuple[str, int, Any]], outputs: Sequence[Any] = ()) -> GlobalMemory:
    """Memory that holds the arrays among (name, rank, value); views of one another become one buffer.

    Those of `outputs` hold nothing before the run: reading what nothing has written there is an error.  Raises SimError for an output that
    is not among the arrays, or that shares memory with another array.
    """
    spans = [(span, rank) for name, rank, value in arrays if (span := ByteSpan.of(value, name)) is not None]
    written = [span for i, one in enumerate(outputs) if (span := ByteSpan.of(one, f"outputs[{i}]")) is not None]
    for span in written:
        inside = {(one.start, one.end) for one, _ in spans if one.start < span.end and span.start < one.end}
        if inside != {(span.start, span.end)}:
            raise SimError(f"{span.name}: must be an argument or one of buffers, and share no memory with another")
    memory = GlobalMemory()
    for span, rank in _merged(spans):
        memory.add(bytes_of(span), span.name, rank, initialized=all(one.start != span.start for one in written))
    return memory


def bytes_of(span: ByteSpan) -> Bytes:
    """The bytes that an array occupies, as a view."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * (span.end - span.start)).from_address(span.start))


def arrays_of(arguments: Iterable[Any], buffers: Iterable[Any] = ()) -> list[Bytes]:
    """The bytes of all arrays that a run with these arguments may change, as views."""
    values = [one for value in arguments for one in (value.values if isinstance(value, PerRank) else (value,))]
    return [bytes_of(span) for value in (*values, *buffers) if (span := ByteSpan.of(value, "an argument")) is not None]


def _merged(spans: list[tuple[ByteSpan, int]]) -> list[tuple[ByteSpan, int]]:
    merged: list[tuple[ByteSpan, int]] = []
    for span, rank in sorted(spans, key=lambda one: (one[0].start, -one[0].end)):
        if merged and span.start < merged[-1][0].end:
            before, first = merged[-1]
            merged[-1] = ByteSpan(before.start, max(before.end, span.end), before.name), first
        else:
            merged.append((span, rank))
    return merged


class PerRank:
    """An argument of `run` that differs from rank to rank: one value for each."""

    def __init__(self, *values: Any) -> None:
        self.values = values


def of_rank(value: Any, rank: int, ranks: int, place: int) -> Any:
    """An argument as one of `ranks` ranks gets it; `place` names it in errors.  Raises SimError for another number of values."""
    if not isinstance(value, PerRank):
        return value
    if len(value.values) != ranks:
        raise SimError(f"argument {place}: PerRank of {len(value.values)} values, must be {ranks}")
    return value.values[rank]
