"""Consecutive instructions of pure arithmetic, as operations on the lanes of a warp.

Every assignment gets a name of its own, so that only what a value is made of orders it, and registers are read once before and written
once after. Equal operations that do not depend on each other, which unrolled loops have many of, are a group, which is done at once.
Inactive lanes are computed too, and not written. Registers that nothing outside their segment reads are not written either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .operands import Binder
from .ops import Inline
from .parser import PtxInstruction

_REGISTER, _NAME = re.compile(r"R\[(\d+)\]"), re.compile(r"[%\w$@.]+")
_OPERAND = re.compile(r"R\[\d+\]|\bk\d+\b(?!\()")
_CALL = re.compile(r"\bk\d+\(")
_WORTH_IT = 8  # operations whose values must be put together first; of functions, which are dear, two are


class LaneOperation(NamedTuple):
    """`template` with the names of `operands` in its gaps, one after the other; `level` is how many operations come before it at least.
    `types` are those of the operands."""

    template: tuple[str, ...]
    operands: tuple[str, ...]
    types: tuple[Any, ...]
    level: int
    name: str
    result: Any

    def text(self, operands: tuple[str, ...]) -> str:
        """Its source for these operands."""
        return self.template[0] + "".join(o + gap for o, gap in zip(operands, self.template[1:], strict=True))


Group = list[LaneOperation]
"""Equal operations that do not depend on each other."""


class Live(NamedTuple):
    """Registers whose values leave a `segment` somewhere in a kernel, and those whose values also leave a `unit`."""

    segment: set[int]
    unit: set[int]


def live_registers(binder: Binder, code: Iterable[tuple[PtxInstruction, Any, bool]]) -> Live:
    """What a kernel reads before it has written it in the same segment or unit.

    `code` has its instructions, what was built of them, and whether a unit begins.
    """
    live, segment, unit = Live(set(binder.watched), set(binder.watched)), set[int](), set[int]()
    for ins, item, begins in code:
        if begins:
            unit.clear()
        if begins or not isinstance(item, Inline):
            segment.clear()
        if isinstance(item, Inline):
            guarded = [] if ins.predicate is None else [ins.predicate, *(d for d, _, _ in item.assignments)]
            reads = {int(i) for _, text, _ in item.assignments for i in _REGISTER.findall(text)}
            reads |= {binder.index[name] for name in guarded if name in binder.index}
        else:
            names = {name for operand in (*ins.operands, ins.predicate or "") for name in _NAME.findall(operand)}
            reads = {binder.index[name] for name in names if name in binder.index}
        live.segment.update(reads - segment)
        live.unit.update(reads - unit)
        if isinstance(item, Inline):
            writes = {binder.index[d] for d, _, _ in item.assignments if d != "_"}
            segment |= writes
            unit |= writes
    return live


class Segment:
    """Collects instructions with `add`; `groups` are their operations, `kept` what can be noticed of them."""

    def __init__(self, binder: Binder, live: Live) -> None:
        self.binder, self.live = binder, live
        self._read: dict[int, str] = {}  # register: name of its value before
        self._values: dict[int, str] = {}  # register: name of its value now
        self._levels: dict[str, int] = {}
        self._types: dict[str, Any] = {}
        self._operations: list[LaneOperation] = []

    def add(self, ins: PtxInstruction, item: Inline) -> None:
        """One instruction, whose assignments happen together."""
        binder, results = self.binder, {}
        for destination, text, dtype in item.assignments:
            if destination != "_":
                i = binder.index[destination]
                text = binder.cast(f"({text})", dtype, binder.storage[i])
                if ins.predicate is not None:
                    yes, no = (f"R[{i}]", text) if ins.negated else (text, f"R[{i}]")
                    text = f"where(R[{binder.index[ins.predicate]}], {yes}, {no})"
                results[i] = self._value(text, binder.storage[i])
        self._values |= results

    def kept(self, masked: bool) -> list[tuple[int, str, str | None]]:
        """Registers to write, the names of their values, and of those before where inactive lanes keep them."""
        merged = self.live.unit if masked else set[int]()  # inactive lanes of the others are read by nobody
        names = [(i, name) for i, name in self._values.items() if i in self.live.segment]
        return [(i, name, self._before(i) if i in merged else None) for i, name in names]

    def _before(self, i: int) -> str:
        self._types[f"r{i}"] = self.binder.storage[i]
        return self._read.setdefault(i, f"r{i}")

    def _value(self, text: str, result: type) -> str:
        """The name of what an expression gives; a mere register is no operation."""
        operands: list[str] = []

        def gap(match: re.Match[str]) -> str:
            name = match.group()
            if name[0] == "R":
                i = int(name[2:-1])
                name = self._values.get(i) or self._before(i)
            elif isinstance(constant := self.binder.names[name], np.ndarray):
                self._types[name] = constant.dtype.type
            else:
                return name
            operands.append(name)
            return "\0"

        template = tuple(_OPERAND.sub(gap, text).split("\0"))
        if template == ("(", ")"):
            return operands[0]
        name = f"v{len(self._operations)}"
        level = self._levels[name] = 1 + max((self._levels.get(o, 0) for o in operands), default=0)
        self._types[name] = result
        self._operations.append(LaneOperation(template, tuple(operands), tuple(self._types[o] for o in operands), level, name, result))
        return name

    def groups(self) -> Iterator[Group]:
        """All operations in an order that works: alone, or as many as are done together."""
        groups: dict[tuple[Any, ...], Group] = {}
        for one in sorted(self._operations, key=lambda one: one.level):
            groups.setdefault((one.level, one.template, one.types), []).append(one)
        joined = set[tuple[str, ...]]()
        for group in groups.values():
            text, columns = "".join(group[0].template), list(zip(*(one.operands for one in group), strict=True))
            ready = all(names in joined or all(name in self.binder.names for name in names) for names in columns)
            if "(w)" not in text and columns and len(group) >= (2 if ready or _CALL.search(text) else _WORTH_IT):
                joined.add(tuple(one.name for one in group))
                yield group
            else:
                yield from ([one] for one in group)
