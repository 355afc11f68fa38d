"""Copies that a kernel makes of the registers of a tcgen05.ld before its wait.

Compilers move such registers early; the copies are made again when the load has delivered. Any other use of one is a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ..interfaces import WarpLike
from ..lanes import Lanes
from ..operands import Binder, Writer, vector
from ..parser import PtxInstruction
from . import Inline, build

_REGISTER = re.compile(r"%?[A-Za-z_$][\w$@%.]*")


@dataclass(frozen=True)
class Copy:
    """One `mov`: the registers it writes, and their values from what the warp's registers hold now."""

    registers: tuple[int, ...]
    writers: tuple[Writer, ...]
    values: Callable[[WarpLike, list[Lanes]], tuple[Lanes, ...]]

    def untouched(self, w: WarpLike) -> bool:
        """Whether nothing else has been written to its registers; to be asked before the load delivers."""
        values = self.values(w, w.R)
        return all(w.R[i].tobytes() == value.tobytes() for i, value in zip(self.registers, values, strict=True))

    def make(self, w: WarpLike) -> None:
        for write, value in zip(self.writers, self.values(w, w.R), strict=True):
            write(w, value, None)


def _copy(ins: PtxInstruction, b: Binder) -> Copy:
    built = build(ins, b)
    assert isinstance(built, Inline)
    kept = [(destination, text) for destination, text, _ in built.assignments if destination != "_"]
    values = eval(f"lambda w, R: ({''.join(f'({text}), ' for _, text in kept)})", b.names)
    registers = tuple(b.index[name] for name, _ in kept)
    b.watched.update(registers)
    return Copy(registers, tuple(b.write(name) for name, _ in kept), values)


def pending_copies(ins: PtxInstruction, b: Binder, names: set[str]) -> tuple[list[Copy], list[str]]:
    """The copies between a load of `names` and its wait, and the first use that no wait precedes, in words.

    Such a use is any other on the way that takes no branch, or one elsewhere in a kernel without waits.
    """
    code, names = b.kernel.code, set(names)
    at = next(i for i, other in enumerate(code) if other is ins)
    copies = []
    waits = any(other.opcode.startswith("tcgen05.wait::ld") for other in code)
    for other in code[at + 1 :]:
        leaves = other.parts[0] in ("bra", "ret", "exit") and other.predicate is None
        if (waits and leaves) or other.opcode.startswith("tcgen05.wait::ld"):
            break
        used = [any(name in names for name in _REGISTER.findall(text)) for text in other.operands]
        if other.parts[0] == "mov" and other.predicate is None and used == [False, True]:
            copies.append(_copy(other, b))
            names |= set(vector(other.operands[0]))
        elif other.predicate in names or any(used):
            use = f"{other.opcode} uses a register of the tcgen05.ld at PTX line {ins.line} before tcgen05.wait::ld"
            return copies, [f"PTX line {other.line}: {use}"]
    return copies, []
