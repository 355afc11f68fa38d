"""The registry of instruction families.

A family module decorates builders with `register("cp.async.bulk.tensor", ...)`. The builder of the longest registered prefix (whole
dot-separated parts) of an opcode gets `(instruction, binder)` once, when the kernel is loaded, and returns one of

- a handler `(warp, mask) -> None | BLOCK | YIELD | EXIT`: run each time lanes reach the instruction; `mask` is None for all 32 lanes,
- `Straight(handler)`: the same, but it always returns None, so it can be fused with its neighbors,
- `Inline([(destination, expression, dtype), ...])`: pure arithmetic as Python source over `R` (registers) and `w`. Lanes do not matter to
  one another, and expressions without `w` take any number of them: those of several instructions at once (see `segment`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..cta import YIELD, Cta, Outcome, Warp
from ..errors import SimError
from ..lanes import Mask
from ..operands import Binder, Reader, vector
from ..parser import PtxInstruction

__all__ = [
    "YIELD", "Binder", "Cta", "Handler", "Inline", "Mask", "Outcome", "PtxInstruction", "SimError", "Straight", "Warp", "build",
    "converged", "each_lane", "load_families", "plain", "register", "vector",
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
    """Assignments to evaluate together: (destination register, Python expression, numpy type of its value)."""

    assignments: list[tuple[str, str, type]]


def each_lane(*readers: Reader | None) -> Callable[[Callable[..., None]], Straight]:
    """An instruction of single lanes: the function is called for one after the other, with the warp, the lane, and integers that `readers`
    find for it; None for a reader that there is not."""

    def of(handler: Callable[..., None]) -> Straight:
        def run(w: Warp, mask: Mask) -> None:
            columns = [reader and reader(w) for reader in readers]
            for lane in w.lanes(mask):
                handler(w, lane, *(None if column is None else int(column[lane]) for column in columns))

        return Straight(run)

    return of


Built = Handler | Straight | Inline
Builder = Callable[[PtxInstruction, Binder], Any]

_BUILDERS: dict[str, Builder] = {}
_LOADED = False


def register(*prefixes: str) -> Callable[[Builder], Builder]:
    """Register a builder for opcodes that start with any of `prefixes`."""

    def add(builder: Builder) -> Builder:
        for prefix in prefixes:
            if prefix in _BUILDERS:
                raise ValueError(f"two instruction families claim {prefix}")
            _BUILDERS[prefix] = builder
        return builder

    return add


def plain(*prefixes: str) -> Callable[[Callable[[Warp, Mask], None]], Callable[[Warp, Mask], None]]:
    """Register a handler that never blocks and needs nothing of its instruction."""

    def add(handler: Callable[[Warp, Mask], None]) -> Callable[[Warp, Mask], None]:
        register(*prefixes)(lambda ins, b: Straight(handler))
        return handler

    return add


def load_families() -> None:
    """Import every module of this package, so that it registers itself."""
    global _LOADED
    if not _LOADED:
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")
        _LOADED = True


def build(ins: PtxInstruction, binder: Binder) -> Built:
    """The handler of one instruction. Raises SimError, with the PTX line, for what no family knows."""
    parts = ins.parts
    for n in range(len(parts), 0, -1):
        if builder := _BUILDERS.get(".".join(parts[:n])):
            try:
                return builder(ins, binder)  # type: ignore[no-any-return]
            except SimError as error:
                raise SimError(f"PTX line {ins.line}: {ins.opcode} {', '.join(ins.operands)}: {error}") from None
    raise SimError(f"PTX line {ins.line}: unknown instruction {ins.opcode}")
