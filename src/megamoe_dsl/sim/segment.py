"""Consecutive instructions of pure arithmetic, as operations on the lanes of a warp.

Every assignment gets a name of its own, so that only what a value is made of orders it, and registers are read once before and written
once after. Equal operations that do not depend on each other, which unrolled loops have many of, are a group, which is done at once.
Inactive lanes are computed too, and not written. Registers that nothing outside their segment reads are not written either.

What expressions are made of, sums, shifts, comparisons and the like, are elementary operations there. All else is external: a function
of Python, which gets the operands of equal operations one after the other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .compiled import compiled
from .formats import bf16_to_f32
from .operands import Binder
from .ops import Inline
from .ops.convert import Narrow, bf16_pair
from .ops.floating import flush, fma32
from .parser import PtxInstruction

_REGISTER, _NAME = re.compile(r"R\[(\d+)\]"), re.compile(r"[%\w$@.]+")
_OPERAND = re.compile(r"R\[\d+\]|\bk\d+\b(?!\()")
_CALL = re.compile(r"\bk\d+\(")
_WORTH_IT = 8  # operations whose values must be put together first; of functions, which are dear, two are


class LaneOperation(NamedTuple):
    """`template` with the names of `operands` in its gaps; `level` is how many operations come before it at least."""

    template: tuple[str, ...]
    operands: tuple[str, ...]
    types: tuple[Any, ...]
    level: int
    name: str
    result: Any


Group = list[LaneOperation]  # Equal operations that do not depend on each other.


class Live(NamedTuple):
    """Registers whose values leave a `segment` somewhere in a kernel, and those whose values also leave a `unit`."""

    segment: set[int]
    unit: set[int]


def live_registers(binder: Binder, code: Iterable[tuple[PtxInstruction, Any, bool]]) -> Live:
    """What a kernel reads before writing it in the same segment or unit. `code`: instructions, what was built, whether a unit begins."""
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


_BINARY: dict[type, str] = {
    ast.Add: "ADD", ast.Sub: "SUB", ast.Mult: "MUL", ast.Div: "DIV", ast.BitAnd: "AND", ast.BitOr: "OR", ast.BitXor: "XOR",
    ast.LShift: "SHL", ast.RShift: "SHR",
}  # fmt: skip
_COMPARE: dict[type, tuple[str, bool]] = {  # and whether the operands change places
    ast.Eq: ("EQ", False), ast.NotEq: ("NE", False), ast.Lt: ("LT", False), ast.LtE: ("LE", False),
    ast.Gt: ("LT", True), ast.GtE: ("LE", True),
}  # fmt: skip
_UNARY: dict[type, str] = {ast.Invert: "NOT", ast.USub: "NEG"}
_CAST = {1: "CAST8", 2: "CAST16", 4: "CAST32", 8: "CAST64"}
_FUNCTIONS: dict[Any, str] = {
    np.add: "ADD", np.subtract: "SUB", np.multiply: "MUL", np.minimum: "MIN", np.maximum: "MAX", np.fmin: "FMIN", np.fmax: "FMAX",
    fma32: "FMA", flush: "FLUSH", bf16_pair: "BF16X2", bf16_to_f32: "BF16",
}  # fmt: skip
_FLOATING = ("ADD", "SUB", "MUL", "DIV", "EQ", "NE", "LT", "LE", "NEG", "ABS", "WHERE", "FMIN", "FMAX")
_OF_ONE_TYPE = {"FMA": np.float32, "FLUSH": np.float32, "BF16": np.uint16, "BF16X2": np.float32, "NARROW": np.float32}
_NAMES = (
    *_BINARY.values(), "EQ", "NE", "LT", "LE", *_UNARY.values(), "WHERE", *_CAST.values(), "MIN", "MAX", "ABS", "FMIN", "FMAX",
    *_OF_ONE_TYPE,
)  # fmt: skip
OPERATIONS = {name: number for number, name in enumerate(_NAMES)}
_SIGNLESS = ("ADD", "SUB", "MUL", "AND", "OR", "XOR", "SHL", "EQ", "NE", "NOT", "NEG", "WHERE")
_INTEGER = tuple(name for name in _NAMES if name not in ("DIV", "ABS", "FMIN", "FMAX", *_OF_ONE_TYPE))
_KNOWN = {  # by numpy's kinds of types
    "b": ("AND", "OR", "XOR", "NOT", "EQ", "NE", "WHERE", *_CAST.values()),
    "i": _INTEGER,
    "u": _INTEGER,
    "f": _FLOATING,
    "c": ("WHERE",),
}
_RESULT_TYPES: dict[str, Any] = {"BF16": np.float32, "BF16X2": np.uint32, "NARROW": np.uint16}
_MASK, _RESULT = -1, -2
_EXTERNAL = -1

_C = compiled("lane_program", OPERATIONS)

Value = tuple[int, Any]  # A place and the numpy type in which it is read.


class _Unknown(Exception):
    """An expression that has no elementary operations."""


@lru_cache(maxsize=4096)
def _tree(template: tuple[str, ...]) -> ast.expr:
    """An expression with names a0, a1, ... in the gaps."""
    text = template[0] + "".join(f"a{i}{gap}" for i, gap in enumerate(template[1:]))
    return ast.parse(text, mode="eval").body


def _key(operation: str, dtype: Any) -> int:
    kind = np.dtype(dtype)
    if operation not in _KNOWN.get(kind.kind, ()) and _OF_ONE_TYPE.get(operation) is not dtype:
        raise _Unknown
    if (kind.kind != "c" and operation == "WHERE") or (kind.kind == "i" and operation in _SIGNLESS):
        kind = np.dtype(f"u{kind.itemsize}")
    return OPERATIONS[operation] * 32 + kind.num


class _Writer:
    """Collects places and code."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self.names = segment, segment.binder.names
        self.places: list[tuple[Any, int]] = []
        self.code: list[tuple[int, int, int, int, int]] = []
        self.externals: list[tuple[Any, bool, tuple[tuple[int, ...], ...]]] = []
        self.values: dict[str, Value] = {}

    def place(self, of: Any, dtype: Any) -> Value:
        self.places.append((of, np.dtype(dtype).num))
        return len(self.places) - 1, dtype

    def value(self, name: str) -> Value:
        """Of a register before, a constant, or an operation that came earlier."""
        if (value := self.values.get(name)) is None:
            if (constant := self.names.get(name)) is not None:
                value = self.place(np.ascontiguousarray(constant), constant.dtype.type)
            else:
                i = int(name[1:])
                value = self.place(i, self.segment.binder.storage[i])
            self.values[name] = value
        return value

    def emit(self, operation: str, dtype: Any, operands: list[Value], result: Any) -> Value:
        key = _key(operation, dtype)
        out = self.place(_RESULT, result)
        a, b, c = ([place for place, _ in operands] * 3)[:3]
        self.code.append((key, out[0], a, b, c))
        return out

    def group(self, group: Group) -> None:
        """Operations that are the same: each in elementary ones, or all in one call."""
        code, places = len(self.code), len(self.places)
        try:
            for one in group:
                value = self.expression(_tree(one.template), one)
                if value[1] != one.result:
                    raise _Unknown
                self.values[one.name] = value
        except _Unknown:
            del self.code[code:]
            self.values = {name: value for name, value in self.values.items() if value[0] < places}
            del self.places[places:]
            self.external(group)

    def expression(self, node: ast.expr, one: LaneOperation) -> Value:
        """The value of an expression, if elementary operations give it."""
        match node:
            case ast.Name(id=name) if name[0] == "a" and name[1:].isdigit():
                i = int(name[1:])
                return self.value(one.operands[i])[0], one.types[i]
            case ast.BinOp(left, operator, right):
                return self.alike(_BINARY.get(type(operator), ""), [self.expression(left, one), self.expression(right, one)])
            case ast.Compare(left, [operator], [right]) if type(operator) in _COMPARE:
                name, swapped = _COMPARE[type(operator)]
                operands = [self.expression(left, one), self.expression(right, one)]
                return self.alike(name, operands[::-1] if swapped else operands, np.bool_)
            case ast.UnaryOp(operator, operand):
                return self.alike(_UNARY.get(type(operator), ""), [self.expression(operand, one)])
            case ast.Call(ast.Name("abs"), [operand]):
                return self.alike("ABS", [self.expression(operand, one)])
            case ast.Call(ast.Name("where"), [condition, yes, no]):
                chosen, operands = self.expression(condition, one), [self.expression(yes, one), self.expression(no, one)]
                if chosen[1] is not np.bool_ or operands[0][1] is not operands[1][1]:
                    raise _Unknown
                return self.emit("WHERE", operands[0][1], [chosen, *operands], operands[0][1])
            case ast.Call(ast.Name(name), arguments) if (operation := self.operation(name)) is not None:
                operands, result = [self.expression(argument, one) for argument in arguments], _RESULT_TYPES.get(operation)
                if operation == "NARROW":
                    operands.append(self.table(self.names[name]))
                    return self.emit(operation, operands[0][1], operands, result)
                return self.alike(operation, operands, result)
            case ast.Call(ast.Attribute(inner, "view"), [ast.Name(dtype)]):
                (place, have), want = self.expression(inner, one), self.names[dtype]
                if np.dtype(have).itemsize != np.dtype(want).itemsize:  # pairs, which are twice as many values
                    raise _Unknown
                return place, want
            case ast.Call(ast.Attribute(inner, "astype"), [ast.Name(dtype)]):
                value, want = self.expression(inner, one), self.names[dtype]
                if np.dtype(want).kind not in "iu" or np.dtype(value[1]).kind not in "iub":
                    raise _Unknown
                return self.emit(_CAST[np.dtype(want).itemsize], value[1], [value], want)
        raise _Unknown

    def operation(self, name: str) -> str | None:
        function = self.names.get(name)
        return "NARROW" if isinstance(function, Narrow) else _FUNCTIONS.get(function)

    def table(self, narrow: Narrow) -> Value:
        key = f"table {id(narrow)}"
        if key not in self.values:
            self.values[key] = self.place(narrow.codes, np.uint8)
        return self.values[key]

    def alike(self, operation: str, operands: list[Value], result: Any = None) -> Value:
        """An operation whose operands must have one type, which is the result's unless another is given."""
        dtype = operands[0][1]
        if operation not in OPERATIONS or any(other is not dtype for _, other in operands):
            raise _Unknown
        return self.emit(operation, dtype, operands, result or dtype)

    def external(self, group: Group) -> None:
        first = group[0]
        operands: tuple[tuple[int, ...], ...] = tuple(
            (np.dtype(dtype).num, *(self.value(name)[0] for name in names))
            for dtype, names in zip(first.types, zip(*(one.operands for one in group), strict=True), strict=True)
        )
        results = [self.place(_RESULT, one.result) for one in group]
        self.code.append((_EXTERNAL, results[0][0], len(self.externals), len(group), 0))
        self.externals.append((*self.function(first), operands))
        self.values |= {one.name: result for one, result in zip(group, results, strict=True)}

    def function(self, one: LaneOperation) -> tuple[Callable[..., Any], bool]:
        match tree := _tree(one.template):
            case ast.Call(ast.Name(name), arguments):
                if [ast.unparse(argument) for argument in arguments] == [f"a{i}" for i in range(len(one.operands))]:
                    return self.names[name], False
        gaps = "".join(f", a{i}" for i in range(len(one.operands)))
        return eval(f"lambda w{gaps}: {ast.unparse(tree)}", self.names), True


def lane_program(segment: Segment, masked: bool) -> Callable[..., None]:
    """What does a segment, called with a warp, its registers and, where `masked`, a mask."""
    writer, kept = _Writer(segment), segment.kept(masked)
    used, groups = {name for one in kept for name in one[1:] if name is not None}, list[Group]()
    for group in reversed(list(segment.groups())):  # backwards: what is used later on is then known
        if not used.isdisjoint(one.name for one in group):
            used.update(name for one in group for name in one.operands)
            groups.append(group)
    for group in reversed(groups):
        writer.group(group)
    mask = writer.place(_MASK, np.bool_) if masked else (0, None)
    outputs = []
    for i, name, before in kept:
        value, dtype = writer.value(name), segment.binder.storage[i]
        if before is not None:
            value = writer.emit("WHERE", dtype, [mask, value, writer.value(before)], dtype)
        outputs.append((i, value[0], np.dtype(dtype).num))
    code = np.array(writer.code, np.int32).tobytes()
    return _C.program(tuple(writer.places), code, tuple(writer.externals), tuple(outputs))  # type: ignore[no-any-return]
