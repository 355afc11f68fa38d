"""Control flow other than branches, CTA and cluster barriers, fences and hints, and launches that begin early or are canceled.

Source: PTX ISA, ret, exit, trap, brkpt, call; bar, barrier.cluster, fence, membar, nanosleep, setmaxnreg; griddepcontrol;
clusterlaunchcontrol. A launch that is not early (`Launch`) has begun after the one before it has ended, so griddepcontrol waits for
nothing. The response of clusterlaunchcontrol, opaque to PTX, is the first CTA's index x, y, z and whether a cluster was canceled, as words;
clusters wait only while `Simulator(resident=...)` does not let all run at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..access_record import ASYNC
from ..chunks import CHUNK, Chunks
from ..cta import EXIT, PARK
from ..lanes import Lanes
from ..memory import B128
from ..sync import SCOPES
from ..tma_engine import load_actor
from ..values import apply
from . import ADDRESS, YIELD, Binder, Inline, Mask, Outcome, PtxInstruction, SimError, Warp, converged, each_lane, plain, register, vector
from .access import line_of, origin, scope, shared_target
from .bulk import finish_load
from .integer import part_of
from .mbarrier import INIT, mbarrier_at


@plain("ret", "exit", straight=False)
def leave(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome:
    """Ends the executing threads; `ret` does too, because there are no device functions."""
    return EXIT


@plain("trap", "brkpt", straight=False)
def trap(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Stops the run with `SimError`, which names the lanes."""
    raise SimError(f"{ins.parts[0]}, lanes {w.lanes(mask)}")


@plain("call")
def call(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Device functions are not simulated: a printf is counted, anything else (an assertion, say) stops the run."""
    if ins.operands != ["vprintf"]:
        raise SimError(f"call of {ins.operands[0] if ins.operands else 'function'}")
    w.world.warnings[f"device printf at {line_of(w)}"] += 1


WAITED = "griddepcontrol.wait"  # In a warp's state: that it has waited.


@plain("griddepcontrol.wait", straight=False)
def wait(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome | None:
    """Until the launch before has ended and what it did is visible; what came before that one, too, as far as it had waited itself."""
    grid = w.cta.cluster.grid
    if grid.must_wait():
        return w.block("the end of the launch before", lambda: not grid.must_wait())
    if known := grid.waited(w.cta):
        w.order.learn(known)
    w.state[WAITED] = True
    return None


@plain("griddepcontrol.launch_dependents")
def launch_dependents(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """The next launch may begin once every CTA has executed it, or ended. It orders nothing by itself."""
    w.cta.cluster.grid.let_next(w.cta, WAITED in w.state)
    w.world.progress += 1


_REDUCTIONS: dict[str, tuple[Any, type]] = {"popc": (np.sum, np.uint32), "and": (np.all, np.bool_), "or": (np.any, np.bool_)}
NOT_ARRIVED = -1


@register("bar", "barrier")
def barrier(ins: PtxInstruction, b: Binder) -> Any:
    """`bar` and `barrier.cta`: sync, arrive and red, with or without a thread count."""
    parts = [p for p in ins.parts[1:] if p not in ("cta", "aligned")]
    reduction = next((p for p in parts[1:] if p in _REDUCTIONS), None)
    operands = ins.operands[1:] if reduction else ins.operands
    number = b.read(operands[0], np.uint32)
    has_count = len(operands) > (2 if reduction else 1)
    count = b.read(operands[1], np.uint32) if has_count else None
    predicate, write = (b.read(operands[-1], np.bool_), b.write(ins.operands[0])) if reduction else (None, None)
    pc_key = ins.line

    def run(w: Warp, mask: Mask) -> Outcome | None:
        first = w.first(mask)
        n = int(number(w)[first])
        if n > 15:
            raise SimError(f"barrier {n}: there are 16")
        bar = w.cta.barriers[n]
        key = (pc_key, b"" if mask is None else mask.tobytes())
        generation = w.state.pop(key, None)
        if generation is None:
            generation, expected = bar.generation, int(count(w)[first]) if count else w.cta.live_threads()
            if expected % 32 or not expected:
                raise SimError(f"barrier {n}: thread count {expected} is not a positive multiple of 32")
            if bar.arrived and (bar.whole != (count is None) or (count and bar.expected != expected)):
                raise SimError(f"barrier arrival expects {expected} threads, earlier arrivals expect {bar.expected}")
            bar.expected, bar.whole = expected, count is None
            # exited and absent lanes count as arrived: the hardware counts whole warps
            threads = 32 if mask is None or w.converged(mask) else int(mask.sum())
            if bar.arrived + threads > expected:
                raise SimError(f"barrier: {bar.arrived + threads} threads arrived, {expected} expected")
            votes = () if predicate is None else predicate(w) if mask is None else predicate(w)[mask]
            bar.arrive(threads, [w.order.released()], votes)
            w.world.progress += 1
            if parts[0] == "arrive":
                return None
        if bar.generation == generation:
            w.state[key] = generation
            return w.block(lambda: f"barrier {n}: {bar}", lambda: bar.generation != generation, PARK)
        if bar.done is not None:
            w.order.learn(bar.done)
            if len(w.order.strands) > 1:  # they have told each other
                w.order.meet(w.order.lanes())
        if write is not None and reduction:
            combine, dtype = _REDUCTIONS[reduction]
            write(w, np.full(32, combine(bar.votes), dtype), mask)
        return None

    return converged(run) if ins.parts[0] == "bar" else run


def _executing(w: Warp, mask: Mask) -> Lanes:
    """The executing lanes; for a converged warp, all lanes that have not exited."""
    return ~w.exited if mask is None or w.converged(mask) else mask


@plain("barrier.cluster.arrive", straight=False)
def cluster_arrive(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Without a qualifier the arrive releases; `.relaxed` publishes only what a fence released before (also `fence.mbarrier_init`)."""
    here, arrived = _executing(w, mask), w.state.setdefault("cluster generation", np.full(32, NOT_ARRIVED))
    if (arrived[here] != NOT_ARRIVED).any():
        raise SimError("barrier.cluster.arrive twice without a wait")
    fenced = [clock for level, clock in w.order.fenced() if level >= SCOPES["cluster"]]
    bar = w.cta.cluster.barrier
    arrived[here] = bar.generation
    bar.arrive(int(here.sum()), [*fenced, *w.order.light_fences()] if "relaxed" in ins.parts else [w.order.released()])
    w.world.progress += 1


@plain("barrier.cluster.wait", straight=False)
def cluster_wait(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome | None:
    """Waits for the generation that the thread arrived in, and acquires what its arrivals released."""
    here, bar, generations = _executing(w, mask), w.cta.cluster.barrier, w.state.get("cluster generation")
    if generations is None or (generations[here] == NOT_ARRIVED).any():
        raise SimError("barrier.cluster.wait without an arrive")
    generation = bar.generation
    if (generations[here] == generation).any():
        return w.block(lambda: f"cluster barrier, {bar.arrived}/{bar.expected}", lambda: bar.generation != generation, PARK)
    generations[here] = NOT_ARRIVED
    if bar.done is not None:
        w.order.learn(bar.done)
    return None


@plain("fence.acq_rel", "fence.sc", "fence.acquire", "fence.release", "membar")
def fence(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Memory fences; `membar.cta/.gl/.sys` are fence.sc at CTA, GPU and system scope. One-sided fences act as both sides."""
    w.order.fence(SCOPES["gpu"] if "gl" in ins.parts else scope(ins.parts, "gpu"))


@plain("fence.proxy.async", "fence.proxy.async::generic", "membar.proxy")
def fence_async(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Makes what the thread knows of visible to the async proxy, in one space or, unqualified, in both."""
    spaces = {part.split("::")[0] for part in ins.parts[3:] if part.startswith(("global", "shared"))} or ASYNC
    w.order.publish_to_async(tuple(ASYNC[space] for space in spaces))


@plain("fence.mbarrier_init")
def fence_barrier_init(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """`fence.mbarrier_init.release.cluster`: a light fence: a later relaxed cluster arrive publishes the warp's `mbarrier.init`s."""
    if (engine := w.state.get(("engine", INIT))) is not None:
        w.order.release_agent(engine[0], w.order.known().at(engine[0]))


@plain(
    *("fence.proxy.alias", "setmaxnreg", "discard", "applypriority", "createpolicy", "pmevent"),
    *("prefetch", "prefetchu", "cp.async.bulk.prefetch"),
)
def hint(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Instructions that do not change results: no operation."""


@plain("nanosleep", straight=False)
def sleep(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome:
    """Lets other warps run; the time asked for does not matter here."""
    return YIELD


@each_lane("clusterlaunchcontrol.try_cancel", reads=(ADDRESS, ADDRESS))
def try_cancel(ins: PtxInstruction, w: Warp, lane: int, where: int, barrier: int) -> None:
    """Take a waiting cluster: try_cancel.async[.shared::cta].mbarrier::complete_tx::bytes[.multicast::cluster::all].b128 [addr], [mbar]"""
    (cta, offset), (barrier_cta, barrier_offset) = shared_target(w, where), shared_target(w, barrier)
    if cta is not w.cta or barrier_cta is not w.cta or offset % CHUNK:
        raise SimError(f"response at {cta} smem {offset:#x}, mbarrier of {barrier_cta}: both in {w.cta}, the response 16-byte aligned")
    targets = w.cta.cluster.ctas if "multicast::cluster::all" in ins.parts else [w.cta]
    barriers, actor_for = [mbarrier_at(target, barrier_offset) for target in targets], load_actor(w, lane)

    def answer() -> None:
        first = w.world.cancel(cta.cluster.grid)
        words = np.array([*(first or (0, 0, 0)), first is not None], np.uint32)
        for one in barriers:
            finish_load(one.cta, Chunks(np.array([offset])), lambda *_: words.view(np.uint8), one, CHUNK, actor_for)

    w.world.post(answer, origin(w))


@register("clusterlaunchcontrol.query_cancel")
def build_query(ins: PtxInstruction, b: Binder) -> Inline:
    """is_canceled.pred.b128 p, response; get_first_ctaid.v4.b32.b128 {x, y, z, _}, response; get_first_ctaid::x.b32.b128 r, response"""
    what, response = ins.parts[2], b.value(ins.operands[1], B128)
    words = [apply(part_of(np.uint32, place), response, dtype=np.uint32) for place in range(4)]
    if what == "is_canceled":
        return Inline([(ins.operands[0], words[3] != 0)])
    if what == "get_first_ctaid":
        return Inline(list(zip(vector(ins.operands[0])[:3], words, strict=False)))
    return Inline([(ins.operands[0], words["xyz".index(what.removeprefix("get_first_ctaid::"))])])
