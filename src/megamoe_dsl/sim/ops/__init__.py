"""The registry of instruction families.

A family module decorates builders with `register("cp.async.bulk.tensor", ...)`. The builder of the longest registered prefix (whole
dot-separated parts) of an opcode gets `(instruction, binder)` once, when the kernel is loaded, and returns one of

- a handler `(warp, mask) -> None | BLOCK | YIELD | EXIT`: run each time lanes reach the instruction, with `.aligned` when all have;
  `mask` is None for all 32 lanes,
- `Straight(handler)`: the same, but it always returns None, so it can be fused with its neighbors,
- `Inline([(destination, value), ...])`: pure arithmetic, in which lanes do not matter to one another (`values`); it is done with that of
  its neighbors (`segment`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ..cta import YIELD, Cta, Outcome, Warp
from ..errors import SimError
from ..lanes import Mask
from ..operands import Binder, vector
from ..parser import PtxInstruction, split_operands
from ..values import Value

__all__ = [
    "ADDRESS", "YIELD", "Binder", "Cta", "Handler", "Inline", "Kinds", "Mask", "Outcome", "PtxInstruction", "SimError", "Straight", "Warp",
    "adds", "all_lanes", "build", "converged", "each_lane", "load_families", "plain", "register", "vector", "whole_warp",
]  # fmt: skip

Handler = Callable[[Warp, Mask], Outcome | None]


def converged(handler: Handler) -> Handler:
    """The handler of an instruction that all lanes of the warp execute together: it waits for those that have not come."""

    def run(w: Warp, mask: Mask) -> Outcome | None:
        return handler(w, mask) if w.converged(mask) else w.block("convergence of its warp")

    return run


@dataclass(frozen=True)
class Straight:
    """A handler that never blocks, yields or exits."""

    handler: Callable[[Warp, Mask], None]


@dataclass(frozen=True)
class Inline:
    """Assignments to evaluate together: destination registers, or `_`, and their values."""

    assignments: list[tuple[str, Value]]


Built = Handler | Straight | Inline
Builder = Callable[[PtxInstruction, Binder], Any]

_BUILDERS: dict[str, Builder] = {}


def register(*prefixes: str) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes that start with any of `prefixes`."""

    def add(builder: Builder) -> Builder:
        for prefix in prefixes:
            if prefix in _BUILDERS:
                raise ValueError(f"two instruction families claim {prefix}")
            _BUILDERS[prefix] = builder
        return builder

    return add


Add = Callable[[Callable[..., Any]], Callable[..., Any]]
ADDRESS = None  # How an operand is read that is an address; others are read as a numpy type.
Kinds = tuple[type | list[type] | None, ...]  # Of operands in order; a list of one type is that of a vector's elements.


def adds(prefixes: tuple[str, ...], make: Callable[..., Any]) -> Add:
    """Register what `make(function, instruction, binder)` makes of the function that is decorated."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        register(*prefixes)(partial(make, function))
        return function

    return add


def plain(*prefixes: str, straight: bool = True) -> Add:
    """Register `handler(instruction, warp, mask)`, which reads no operands; `straight`: it always returns None."""
    return adds(prefixes, lambda handler, ins, b: Straight(partial(handler, ins)) if straight else partial(handler, ins))


def _reader(b: Binder, operand: str, kind: type | list[type] | None) -> Callable[[Warp], Any]:
    """A reader of one operand; of a vector, or of `[address, {x, y}]`, it gives the list of parts."""
    if isinstance(kind, type):
        return b.read(operand, kind)
    address, *listed = split_operands(operand[1:-1] if operand.startswith("[") else operand)
    if kind is ADDRESS and not listed:
        return b.address(address)
    parts = (
        [b.read(one, kind[0]) for one in vector(operand)]
        if kind
        else [b.address(address), *(b.read(one, np.int32) for one in vector(listed[0]))]
    )
    return lambda w: [reader(w) for reader in parts]


def all_lanes(*prefixes: str, reads: Kinds | Callable[[PtxInstruction, Binder], Kinds]) -> Add:
    """Register `handler(instruction, warp, {lane: integers})` of the executing lanes; `reads` are kinds of its first operands."""

    def make(handler: Callable[..., None], ins: PtxInstruction, b: Binder) -> Straight:
        readers = [_reader(b, *one) for one in zip(ins.operands, reads(ins, b) if callable(reads) else reads, strict=False)]

        def run(w: Warp, mask: Mask) -> None:
            columns, given = [reader(w) for reader in readers], dict[int, tuple[Any, ...]]()
            for lane in w.lanes(mask):
                given[lane] = tuple([tuple([c.item(lane) for c in one]) if type(one) is list else one.item(lane) for one in columns])
            handler(ins, w, given)

        return Straight(run)

    return adds(prefixes, make)


def each_lane(*prefixes: str, reads: Kinds | Callable[[PtxInstruction, Binder], Kinds]) -> Add:
    """Register `handler(instruction, warp, lane, *integers)` for one lane after the other."""

    def add(handler: Callable[..., None]) -> Callable[..., None]:
        def run(ins: PtxInstruction, w: Warp, given: dict[int, tuple[Any, ...]]) -> None:
            for lane, integers in given.items():
                handler(ins, w, lane, *integers)

        all_lanes(*prefixes, reads=reads)(run)
        return handler

    return add


def whole_warp(*prefixes: str, reads: Kinds) -> Add:
    """Register `handler(instruction, warp, *integers)` for all lanes together, with the operands of the first."""

    def make(handler: Callable[..., Outcome | None], ins: PtxInstruction, b: Binder) -> Handler:
        readers = [_reader(b, *one) for one in zip(ins.operands, reads, strict=False)]
        return lambda w, mask: handler(ins, w, *(int(reader(w)[w.first(mask)]) for reader in readers))

    return adds(prefixes, make)


@cache
def load_families() -> None:
    """Import every module of this package, so that it registers itself."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def build(ins: PtxInstruction, binder: Binder) -> Built:
    """The handler of one instruction. Raises SimError, with the PTX line, for what no family knows."""
    parts = ins.parts
    for n in range(len(parts), 0, -1):
        if builder := _BUILDERS.get(".".join(parts[:n])):
            try:
                built = builder(ins, binder)
                return built if "aligned" not in parts or isinstance(built, Straight | Inline) else converged(built)
            except SimError as error:
                raise SimError(f"PTX line {ins.line}: {ins.opcode} {', '.join(ins.operands)}: {error}") from None
    raise SimError(f"PTX line {ins.line}: unknown instruction {ins.opcode}")
