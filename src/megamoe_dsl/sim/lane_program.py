"""A segment as a program that C interprets (`lane_program.c`): its operations, one after the other.

What expressions are made of, sums, shifts, comparisons and the like, are elementary operations there. All else is external: a function
of Python, which gets the operands of equal operations one after the other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from .compiled import compiled
from .formats import bf16_to_f32
from .ops.convert import Narrow, bf16_pair
from .ops.floating import flush, fma32
from .segment import Group, LaneOperation, Segment

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

Value = tuple[int, Any]
"""A place and the numpy type in which it is read."""


class _Unknown(Exception):
    """An expression that has no elementary operations."""


@lru_cache(maxsize=4096)
def _tree(template: tuple[str, ...]) -> ast.expr:
    """An expression with names a0, a1, ... in the gaps."""
    text = template[0] + "".join(f"a{i}{gap}" for i, gap in enumerate(template[1:]))
    return ast.parse(text, mode="eval").body


def _key(operation: str, dtype: Any) -> int:
    """What C calls an operation on a type."""
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
        """One elementary operation on operands of a type."""
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
        """The operation that a function is, if there is one."""
        function = self.names.get(name)
        return "NARROW" if isinstance(function, Narrow) else _FUNCTIONS.get(function)

    def table(self, narrow: Narrow) -> Value:
        """The place of the codes of a narrow format."""
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
        """One call of Python for all of a group."""
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
        """What computes an operation from its operands, and whether it asks for the warp."""
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
