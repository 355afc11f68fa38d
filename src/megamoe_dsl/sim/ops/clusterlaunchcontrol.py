"""clusterlaunchcontrol: a running cluster takes the place of one of its grid that has not started.

Source: PTX ISA, "clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel". The 16 bytes of the response are opaque
there; here they are the first CTA's index x, y, z and whether a cluster was canceled, as words. Clusters wait only while
`Simulator(resident=...)` does not let all run at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..chunks import CHUNK, Chunks
from ..mbarrier import Mbarrier, mbarrier_at
from ..memory import B128
from ..tma_engine import Issue, finish_load, write_shared_chunks
from . import Binder, Cta, Inline, PtxInstruction, SimError, Straight, Warp, each_lane, register, vector
from .common import origin, shared_target

_AXES = {"x": 0, "y": 1, "z": 2}


@register("clusterlaunchcontrol.try_cancel")
def build_try_cancel(ins: PtxInstruction, b: Binder) -> Straight:
    """Take a waiting cluster: try_cancel.async[.shared::cta].mbarrier::complete_tx::bytes[.multicast::cluster::all].b128 [addr], [mbar]"""
    address, barrier_address = b.address(ins.operands[0]), b.address(ins.operands[1])
    multicast = "multicast::cluster::all" in ins.parts

    @each_lane(address, barrier_address)
    def run(w: Warp, lane: int, where: int, barrier: int) -> None:
        (cta, offset), (barrier_cta, barrier_offset) = shared_target(w, where), shared_target(w, barrier)
        if cta is not w.cta or barrier_cta is not w.cta or offset % CHUNK:
            raise SimError(f"response at {cta} smem {offset:#x}, mbarrier of {barrier_cta}: both in {w.cta}, the response 16-byte aligned")
        targets = w.cta.cluster.ctas if multicast else [w.cta]
        answers = [(target, mbarrier_at(target, barrier_offset)) for target in targets]
        w.world.post(_canceller(Issue.of(w, lane), w.cta, answers, offset), origin(w))

    return run


def _canceller(issue: Issue, cta: Cta, answers: list[tuple[Cta, Mbarrier]], offset: int) -> Callable[[], None]:
    def run() -> None:
        first = issue.world.cancel(cta)
        words = np.array([*(first or (0, 0, 0)), first is not None], np.uint32)
        for target, barrier in answers:
            actor = issue.load_actor(barrier)
            write_shared_chunks(target, Chunks(np.array([offset])), words.view(np.uint8), actor)
            finish_load(barrier, CHUNK, actor)

    return run


@register("clusterlaunchcontrol.query_cancel")
def build_query(ins: PtxInstruction, b: Binder) -> Inline:
    """is_canceled.pred.b128 p, response; get_first_ctaid.v4.b32.b128 {x, y, z, _}, response; get_first_ctaid::x.b32.b128 r, response"""
    name, what = b.name(_word), ins.parts[2]
    response = b.expression(ins.operands[1], B128)
    if what == "is_canceled":
        return Inline([(ins.operands[0], f"{name}({response}, 3) != 0", np.bool_)])
    if what == "get_first_ctaid":
        places = vector(ins.operands[0])[:3]
        return Inline([(place, f"{name}({response}, {axis})", np.uint32) for axis, place in enumerate(places)])
    axis = _AXES[what.removeprefix("get_first_ctaid::")]
    return Inline([(ins.operands[0], f"{name}({response}, {axis})", np.uint32)])


def _word(response: np.ndarray, index: int) -> np.ndarray:
    return np.ascontiguousarray(np.ascontiguousarray(response).view(np.uint32).reshape(-1, 4)[:, index])
