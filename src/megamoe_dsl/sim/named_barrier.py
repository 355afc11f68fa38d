"""Named barriers (PTX ISA, bar)."""

from __future__ import annotations

from typing import Any

from .clock import Clock


class BarrierState:
    """One of the sixteen barriers of a CTA."""

    __slots__ = ("arrived", "clock", "done", "expected", "generation", "values", "whole")

    def __init__(self) -> None:
        self.arrived = self.expected = self.generation = 0
        self.whole = False  # no thread count: all warps of the CTA that have not exited
        self.clock: Clock | None = None
        self.done: Clock | None = None
        self.values: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.arrived}/{self.expected} threads arrived, generation {self.generation}"

    def complete(self) -> None:
        """All expected threads are here: start the next generation."""
        self.arrived, self.generation = 0, self.generation + 1
        self.done, self.clock = self.clock, None
        self.values = {"result": self.values.get("sum")}
