"""Control flow other than branches (PTX ISA: ret, exit, trap, brkpt, call)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import SimError
from ..operands import Binder
from ..parser import Instruction
from . import EXIT, Outcome, Straight, register

if TYPE_CHECKING:
    from ..operands import Mask
    from ..warp import Warp


@register("ret", "exit")
def leave(ins: Instruction, b: Binder) -> Any:
    return lambda w, mask: EXIT


@register("trap", "brkpt")
def trap(ins: Instruction, b: Binder) -> Any:
    def run(w: Warp, mask: Mask) -> Outcome | None:
        raise SimError(f"{ins.parts[0]}, lanes {w.lanes(mask)}")

    return run


@register("call")
def call(ins: Instruction, b: Binder) -> Any:
    """Device functions are not simulated: a printf is counted, anything else (an assertion, say) stops the run."""
    name = ins.operands[0] if ins.operands else "function"

    def run(w: Warp, mask: Mask) -> None:
        if name != "vprintf":
            raise SimError(f"call of {name}")
        w.world.warnings[f"device printf at PTX line {ins.line}"] += 1

    return Straight(run)
