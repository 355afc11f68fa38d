"""Control flow other than branches (PTX ISA: ret, exit, trap, brkpt, call, griddepcontrol).

With griddepcontrol a launch begins before the one before it in the stream has ended, and waits for that. A launch that is not early
(`Launch`) has begun after that, and waits for nothing.
"""

from __future__ import annotations

from typing import Any

from ..fragment import EXIT
from . import Binder, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, register
from .common import line_of


@register("ret", "exit")
def leave(ins: PtxInstruction, b: Binder) -> Any:
    """Ends the executing threads; `ret` too, for only the kernel itself runs."""
    return lambda w, mask: EXIT


@register("trap", "brkpt")
def trap(ins: PtxInstruction, b: Binder) -> Any:
    """Stops the run with `SimError`, which names the lanes."""

    def run(w: Warp, mask: Mask) -> Outcome | None:
        raise SimError(f"{ins.parts[0]}, lanes {w.lanes(mask)}")

    return run


@register("call")
def call(ins: PtxInstruction, b: Binder) -> Any:
    """Device functions are not simulated: a printf is counted, anything else (an assertion, say) stops the run."""
    name = ins.operands[0] if ins.operands else "function"

    def run(w: Warp, mask: Mask) -> None:
        if name != "vprintf":
            raise SimError(f"call of {name}")
        w.world.warnings[f"device printf at {line_of(w)}"] += 1

    return Straight(run)


WAITED = "griddepcontrol.wait"
"""In a warp's state: that it has waited."""


@register("griddepcontrol.wait")
def wait(ins: PtxInstruction, b: Binder) -> object:
    """Until the launch before has ended and what it did is visible; what came before that one, too, as far as it had waited itself."""

    def run(w: Warp, mask: Mask) -> Outcome | None:
        grid = w.cta.cluster.grid
        if grid.must_wait():
            return w.block("the end of the launch before", lambda: not grid.must_wait())
        known = grid.waited(w.cta)
        if w.world.race is not None and known is not None:
            w.order.learn(known)
        w.state[WAITED] = True
        return None

    return run


@register("griddepcontrol.launch_dependents")
def launch_dependents(ins: PtxInstruction, b: Binder) -> Straight:
    """The next launch may begin once every CTA has executed it, or ended. It orders nothing by itself."""

    def run(w: Warp, mask: Mask) -> None:
        w.cta.cluster.grid.let_next(w.cta, WAITED in w.state)
        w.world.progress += 1

    return Straight(run)
