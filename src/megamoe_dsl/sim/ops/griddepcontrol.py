"""griddepcontrol: a launch that begins before the one before it in the stream has ended, and waits for that (PTX ISA, "griddepcontrol").

A launch that is not early (`Launch`) has begun after that, and waits for nothing.
"""

from __future__ import annotations

from ..interfaces import WarpLike
from ..lanes import Mask
from ..operands import Binder
from ..outcome import Outcome
from ..parser import PtxInstruction
from . import Straight, register

WAITED = "griddepcontrol.wait"
"""In a warp's state: that it has waited."""


@register("griddepcontrol.wait")
def wait(ins: PtxInstruction, b: Binder) -> object:
    """Until the launch before has ended and what it did is visible; what came before that one, too, as far as it had waited itself."""

    def run(w: WarpLike, mask: Mask) -> Outcome | None:
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

    def run(w: WarpLike, mask: Mask) -> None:
        w.cta.cluster.grid.let_next(w.cta, WAITED in w.state)
        w.world.progress += 1

    return Straight(run)
