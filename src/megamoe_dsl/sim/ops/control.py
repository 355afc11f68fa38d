"""Control flow other than branches (PTX ISA: ret, exit, trap, brkpt, call)."""

from __future__ import annotations

from typing import Any

from ..errors import SimError
from ..interfaces import WarpLike
from ..lanes import Mask
from ..operands import Binder
from ..outcome import EXIT, Outcome
from ..parser import PtxInstruction
from . import Straight, register
from .common import line_of


@register("ret", "exit")
def leave(ins: PtxInstruction, b: Binder) -> Any:
    """Ends the executing threads; `ret` too, for only the kernel itself runs."""
    return lambda w, mask: EXIT


@register("trap", "brkpt")
def trap(ins: PtxInstruction, b: Binder) -> Any:
    """Stops the run with `SimError`, which names the lanes."""

    def run(w: WarpLike, mask: Mask) -> Outcome | None:
        raise SimError(f"{ins.parts[0]}, lanes {w.lanes(mask)}")

    return run


@register("call")
def call(ins: PtxInstruction, b: Binder) -> Any:
    """Device functions are not simulated: a printf is counted, anything else (an assertion, say) stops the run."""
    name = ins.operands[0] if ins.operands else "function"

    def run(w: WarpLike, mask: Mask) -> None:
        if name != "vprintf":
            raise SimError(f"call of {name}")
        w.world.warnings[f"device printf at {line_of(w)}"] += 1

    return Straight(run)
