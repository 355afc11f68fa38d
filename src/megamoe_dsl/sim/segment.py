"""Consecutive instructions of pure arithmetic, as one program on the lanes of a warp.

Every value is a step, so that only what it is made of orders it, and registers are read once before and written once after. Inactive lanes
are computed too, and not written. Registers that nothing outside their segment reads are not written either.

Sums, shifts, comparisons and the like are elementary operations of `lane_program.c`. Other functions are called: once for all equal
steps that do not depend on each other, which unrolled loops have many of, with their operands one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .compiled import compiled
from .formats import bf16_to_f32
from .loads_in_flight import registers_of
from .memory import ELEMENTS
from .operands import Binder
from .ops import Inline
from .ops.convert import bf16_pair, narrow_pair
from .ops.floating import flush, fma32
from .parser import PtxInstruction
from .values import AS_TYPE, VIEW, Value, where


class Live(NamedTuple):
    """Registers whose values leave a `segment` somewhere in a kernel, and those whose values also leave a `unit`."""

    segment: set[int]
    unit: set[int]


def live_registers(binder: Binder, code: Iterable[tuple[PtxInstruction, Any, bool]]) -> Live:
    """Registers that a kernel reads before it writes them in a segment or unit. `code`: (instruction, built, begins a unit)."""
    live, segment, unit = Live(set(binder.watched), set(binder.watched)), set[int](), set[int]()
    for ins, item, begins in code:
        if begins:
            unit.clear()
        if begins or not isinstance(item, Inline):
            segment.clear()
        if isinstance(item, Inline):
            guarded = [] if ins.predicate is None else [ins.predicate, *(name for name, _ in item.assignments)]
            reads = {leaf.source for _, value in item.assignments for leaf in value.leaves() if isinstance(leaf.source, int)}
            reads |= {binder.index[name] for name in guarded if name in binder.index}
        else:
            reads = {binder.index[name] for name in registers_of(ins) if name in binder.index}
        live.segment.update(reads - segment)
        live.unit.update(reads - unit)
        if isinstance(item, Inline):
            writes = {binder.index[name] for name, _ in item.assignments if name != "_"}
            segment |= writes
            unit |= writes
    return live


_INTEGERS = (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64)
_FLOATS = (np.float32, np.float64)
_NUMBERS = (*_INTEGERS, *_FLOATS)
_ELEMENTARY: dict[Any, tuple[str, tuple[type, ...]]] = {
    np.add: ("ADD", _NUMBERS), np.subtract: ("SUB", _NUMBERS), np.multiply: ("MUL", _NUMBERS), np.divide: ("DIV", _FLOATS),
    np.bitwise_and: ("AND", (*_INTEGERS, np.bool_)), np.bitwise_or: ("OR", (*_INTEGERS, np.bool_)),
    np.bitwise_xor: ("XOR", (*_INTEGERS, np.bool_)), np.left_shift: ("SHL", _INTEGERS), np.right_shift: ("SHR", _INTEGERS),
    np.equal: ("EQ", (*_NUMBERS, np.bool_)), np.not_equal: ("NE", (*_NUMBERS, np.bool_)), np.less: ("LT", _NUMBERS),
    np.less_equal: ("LE", _NUMBERS), np.invert: ("NOT", (*_INTEGERS, np.bool_)), np.negative: ("NEG", _NUMBERS),
    np.minimum: ("MIN", _INTEGERS), np.maximum: ("MAX", _INTEGERS), np.absolute: ("ABS", _FLOATS), np.fmin: ("FMIN", _FLOATS),
    np.fmax: ("FMAX", _FLOATS), np.where: ("WHERE", (*_NUMBERS, np.bool_, np.complex128)), fma32: ("FMA", (np.float32,)),
    flush: ("FLUSH", (np.float32,)), bf16_to_f32: ("BF16", (np.uint16,)), bf16_pair: ("BF16X2", (np.float32,)),
    narrow_pair: ("NARROW", (np.float32,)),
}  # fmt: skip
"""Functions that are operations, under this name, of such operands."""
_SWAPPED = {np.greater: np.less, np.greater_equal: np.less_equal}
_SIGNLESS = ("ADD", "SUB", "MUL", "AND", "OR", "XOR", "SHL", "EQ", "NE", "NOT", "NEG")
_CASTS = {1: "CAST8", 2: "CAST16", 4: "CAST32", 8: "CAST64"}
OPERATIONS = {name: number for number, name in enumerate([*(name for name, _ in _ELEMENTARY.values()), *_CASTS.values()])}
_MASK, _RESULT = -1, -2
_EXTERNAL = -1

_C = compiled("lane_program", OPERATIONS)


@lru_cache(maxsize=4096)
def elementary(function: Any, types: tuple[type, ...], result: type) -> int | None:
    """Opcode in `lane_program.c` for operands of these types; None if the function must be called."""
    kind: Any
    if function is AS_TYPE:
        if types[0] not in (*_INTEGERS, np.bool_) or result not in _INTEGERS:
            return None
        name, kind = _CASTS[np.dtype(result).itemsize], types[0]
    else:
        name, known = _ELEMENTARY.get(function, ("", ()))
        kind = types[1 if name == "WHERE" else 0]
        if kind not in known:
            return None
    if name == "WHERE" or (name in _SIGNLESS and kind in _INTEGERS):
        kind = ELEMENTS[np.dtype(kind).itemsize]
    return OPERATIONS[name] * 32 + np.dtype(kind).num


@lru_cache
def cast_to(dtype: type) -> Callable[[Any], Any]:
    return lambda values: values.astype(dtype)


class ValueStep(NamedTuple):
    """A `Value` that is no view: `operands` are steps, read as `types`. `level` is how many calls come before it at least."""

    source: Any
    dtype: type
    operands: tuple[int, ...] = ()
    types: tuple[type, ...] = ()
    level: int = 0

    @property
    def operation(self) -> int | None:
        return elementary(self.source, self.types, self.dtype) if self.operands else None

    @property
    def called(self) -> bool:
        return callable(self.source) and self.operation is None


class Segment:
    """Collects instructions with `add`; `kept` is what can be noticed of them."""

    def __init__(self, binder: Binder, live: Live) -> None:
        self.binder, self.live = binder, live
        self.steps: list[ValueStep] = []
        self._leaves: dict[Any, int] = {}  # register, function of the warp, or type and bytes of a constant: the step that it is before
        self._values: dict[int, int] = {}  # register: the step of its value now

    def add(self, ins: PtxInstruction, item: Inline) -> None:
        """One instruction, whose assignments happen together."""
        binder, results = self.binder, {}
        for destination, value in item.assignments:
            if destination != "_":
                i = binder.index[destination]
                value, before = value.to(binder.storage[i]), Value(i, binder.storage[i])
                if ins.predicate is not None:
                    guard = Value(binder.index[ins.predicate], np.bool_)
                    value = where(guard, before, value) if ins.negated else where(guard, value, before)
                results[i] = self._step(value)
        self._values |= results

    def kept(self, masked: bool) -> dict[int, tuple[int, int | None]]:
        """Registers to write, the steps of their values, and of those before where inactive lanes keep them."""
        merged = self.live.unit if masked else set[int]()  # inactive lanes of the others are read by nobody
        kept = {i: step for i, step in self._values.items() if i in self.live.segment}
        return {i: (step, self._leaf(Value(i, self.binder.storage[i])) if i in merged else None) for i, step in kept.items()}

    def _leaf(self, leaf: Value) -> int:
        key = (leaf.dtype, leaf.source.tobytes()) if isinstance(leaf.source, np.ndarray) else leaf.source
        if key not in self._leaves:
            self._leaves[key] = self._append(ValueStep(leaf.source, leaf.dtype, level=int(callable(leaf.source))))
        return self._leaves[key]

    def _append(self, step: ValueStep) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _step(self, value: Value) -> int:
        """The step that a value is, made with those of its operands; its dtype may be another one of the same size."""
        while value.source is VIEW:
            (value,) = value.operands
        if not value.operands:
            step = self._values.get(value.source) if isinstance(value.source, int) else None
            return self._leaf(value) if step is None else step
        source, operands = value.source, value.operands[::-1] if value.source in _SWAPPED else value.operands
        source = _SWAPPED.get(source, source)
        steps, types = tuple(map(self._step, operands)), tuple(one.dtype for one in operands)
        if source is AS_TYPE and elementary(source, types, value.dtype) is None:
            source = cast_to(value.dtype)
        called = elementary(source, types, value.dtype) is None
        return self._append(ValueStep(source, value.dtype, steps, types, max(self.steps[one].level for one in steps) + called))


def lane_program(segment: Segment, masked: bool) -> Callable[..., None]:
    """Compiles a segment to a function of a warp, its registers and, if `masked`, a mask."""
    steps, kept = segment.steps, segment.kept(masked)
    used = {step for pair in kept.values() for step in pair if step is not None}
    for number in reversed(range(len(steps))):
        if number in used:
            used.update(steps[number].operands)
    places, code, externals, outputs = list[tuple[Any, int]](), list[tuple[int, ...]](), list[Any](), list[tuple[int, ...]]()
    place_of: dict[int, int] = {}

    def place(of: Any, dtype: Any) -> int:
        places.append((of, np.dtype(dtype).num))
        return len(places) - 1

    def operate(operation: int, dtype: type, operands: Iterable[int]) -> int:
        result = place(_RESULT, dtype)
        code.append((operation, result, *([*operands] * 3)[:3]))
        return result

    def call(group: list[int]) -> None:
        first = steps[group[0]]
        columns = zip(*(steps[number].operands for number in group), strict=True)
        operands = tuple((np.dtype(t).num, *map(place_of.__getitem__, column)) for t, column in zip(first.types, columns, strict=True))
        place_of.update({number: place(_RESULT, first.dtype) for number in group})
        code.append((_EXTERNAL, place_of[group[0]], len(externals), len(group), 0))
        externals.append((first.source, not first.operands, operands))

    calls: dict[tuple[Any, ...], list[int]] = {}
    for number in sorted(used, key=lambda number: (steps[number].level, not steps[number].called, number)):
        step = steps[number]
        if step.called:
            alone = number if not step.operands else None
            calls.setdefault((step.level, step.source, step.types, alone), []).append(number)
            continue
        while calls and next(iter(calls))[0] <= step.level:
            call(calls.pop(next(iter(calls))))
        if step.operation is not None:
            place_of[number] = operate(step.operation, step.dtype, [place_of[one] for one in step.operands])
        else:
            place_of[number] = place(np.ascontiguousarray(step.source) if isinstance(step.source, np.ndarray) else step.source, step.dtype)
    for group in calls.values():
        call(group)
    mask = place(_MASK, np.bool_) if masked else 0
    for i, (value, before) in kept.items():
        dtype, last = segment.binder.storage[i], place_of[value]
        if before is not None:
            last = operate(elementary(np.where, (np.bool_, dtype), dtype) or 0, dtype, [mask, last, place_of[before]])
        outputs.append((i, last, np.dtype(dtype).num))
    return _C.program(tuple(places), np.array(code, np.int32).tobytes(), tuple(externals), tuple(outputs))  # type: ignore[no-any-return]
