"""Control flow other than branches, CTA and cluster barriers, fences and hints, and launches that begin early or are canceled.

Source: PTX ISA, ret, exit, trap, brkpt, call; bar, barrier.cluster, fence, membar, nanosleep, setmaxnreg; griddepcontrol;
clusterlaunchcontrol. With griddepcontrol a launch begins before the one before it in the stream has ended, and waits for that. A launch
that is not early (`Launch`) has begun after that, and waits for nothing. The 16 bytes of clusterlaunchcontrol's response are opaque to
PTX; here they are the first CTA's index x, y, z and whether a cluster was canceled, as words. Clusters wait only while
`Simulator(resident=...)` does not let all run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..chunks import CHUNK, Chunks
from ..cta import EXIT
from ..memory import B128
from ..sync import SCOPES, BarrierState
from ..tma_engine import Issue, write_shared_chunks
from . import (
    YIELD,
    Binder,
    Cta,
    Inline,
    Mask,
    Outcome,
    PtxInstruction,
    SimError,
    Straight,
    Warp,
    converged,
    each_lane,
    plain,
    register,
    vector,
)
from .access import line_of, origin, scope, shared_target
from .mbarrier import Mbarrier, mbarrier_at


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


@plain("griddepcontrol.launch_dependents")
def launch_dependents(w: Warp, mask: Mask) -> None:
    """The next launch may begin once every CTA has executed it, or ended. It orders nothing by itself."""
    w.cta.cluster.grid.let_next(w.cta, WAITED in w.state)
    w.world.progress += 1


_REDUCTIONS = ("popc", "and", "or")
NOT_ARRIVED = -1


def _arrive(w: Warp, bar: BarrierState, lanes: int, expected: int, whole: bool) -> None:
    if bar.arrived and (bar.whole != whole or (bar.expected != expected and not whole)):
        raise SimError(f"barrier arrival expects {expected} threads, earlier arrivals expect {bar.expected}")
    bar.expected, bar.whole = expected, whole
    bar.arrived += lanes
    w.world.progress += 1
    if bar.arrived > expected:
        raise SimError(f"barrier: {bar.arrived} threads arrived, {expected} expected")
    if w.world.race is not None:
        told = w.order.released()
        if bar.clock is None:
            bar.clock = told
        else:
            bar.clock.join(told)
    if bar.arrived == expected:
        bar.complete()


@register("bar", "barrier")
def barrier(ins: PtxInstruction, b: Binder) -> Any:
    """`bar` and `barrier.cta`: sync, arrive and red, with or without a thread count."""
    parts = [p for p in ins.parts[1:] if p not in ("cta", "aligned")]
    kind, aligned = parts[0], ins.parts[0] == "bar" or "aligned" in ins.parts
    reduction = next((p for p in parts[1:] if p in _REDUCTIONS), None)
    operands = ins.operands[1:] if reduction else ins.operands
    number = b.read(operands[0], np.uint32)
    has_count = len(operands) > (2 if reduction else 1)
    count = b.read(operands[1], np.uint32) if has_count else None
    predicate = b.read(operands[-1], np.bool_) if reduction else None
    write = b.write(ins.operands[0]) if reduction else None
    pc_key = ins.line

    def run(w: Warp, mask: Mask) -> Outcome | None:
        first = w.first(mask)
        n = int(number(w)[first])
        if n > 15:
            raise SimError(f"barrier {n}: there are 16")
        bar = w.cta.barrier(n)
        key = (pc_key, b"" if mask is None else mask.tobytes())
        waiting = w.state.get(key)
        if waiting is None:
            expected = int(count(w)[first]) if count else w.cta.live_threads()
            if expected % 32 or not expected:
                raise SimError(f"barrier {n}: thread count {expected} is not a positive multiple of 32")
            if predicate is not None:
                _collect(bar, reduction, predicate(w) if mask is None else predicate(w)[mask])
            generation = bar.generation
            # exited and absent lanes count as arrived: the hardware counts whole warps
            _arrive(w, bar, 32 if w.converged(mask) else int(mask.sum()), expected, count is None)  # type: ignore[union-attr]
            if kind == "arrive":
                return None
            if bar.generation == generation:
                w.state[key] = generation
                return w.park(lambda: f"barrier {n}: {bar}", lambda: bar.generation != generation)
        elif bar.generation == waiting:
            return w.park(lambda: f"barrier {n}: {bar}", lambda: bar.generation != waiting)
        else:
            del w.state[key]
        if bar.done is not None:
            w.order.learn(bar.done)
            if len(w.order.strands) > 1:  # they have told each other
                w.order.meet(w.order.lanes())
        if write is not None:
            result = bar.values["result"]
            write(w, np.full(32, result, np.uint32 if reduction == "popc" else np.bool_), mask)
        return None

    return converged(run) if aligned else run


def _collect(bar: BarrierState, reduction: str | None, flags: Any) -> None:
    if reduction == "popc":
        bar.values["sum"] = bar.values.get("sum", 0) + int(flags.sum())
    elif reduction == "and":
        bar.values["sum"] = bar.values.get("sum", True) and bool(flags.all())
    else:
        bar.values["sum"] = bar.values.get("sum", False) or bool(flags.any())


@register("barrier.cluster.arrive")
def cluster_arrive(ins: PtxInstruction, b: Binder) -> Any:
    """Without a qualifier the arrive releases; `.relaxed` publishes only what a fence released before (also `fence.mbarrier_init`)."""
    releases, aligned = "relaxed" not in ins.parts, "aligned" in ins.parts

    def run(w: Warp, mask: Mask) -> Outcome | None:
        cluster, whole = w.cta.cluster, w.converged(mask)
        here = ~w.exited if whole else mask
        arrived = w.state.setdefault("cluster generation", np.full(32, NOT_ARRIVED))
        if (arrived[here] != NOT_ARRIVED).any():
            raise SimError("barrier.cluster.arrive twice without a wait")
        if (race := w.world.race) is not None:
            cluster.clock = cluster.clock or race.clock()
            for clock in [w.order.released()] if releases else w.order.relaxed_release(SCOPES["cluster"]):
                cluster.clock.join(clock)
        arrived[here] = cluster.generation
        cluster.arrive(int(here.sum()))  # type: ignore[union-attr]
        w.world.progress += 1
        return None

    return converged(run) if aligned else run


@register("barrier.cluster.wait")
def cluster_wait(ins: PtxInstruction, b: Binder) -> Any:
    """Waits for the generation that the thread arrived in, and acquires what its arrivals released."""
    aligned = "aligned" in ins.parts

    def run(w: Warp, mask: Mask) -> Outcome | None:
        cluster, here = w.cta.cluster, ~w.exited if w.converged(mask) else mask
        generations = w.state.get("cluster generation")
        if generations is None or (generations[here] == NOT_ARRIVED).any():
            raise SimError("barrier.cluster.wait without an arrive")
        generation = cluster.generation
        if (generations[here] == generation).any():
            return w.park(lambda: f"cluster barrier, {cluster.arrived}/{cluster.expected}", lambda: cluster.generation != generation)
        generations[here] = NOT_ARRIVED
        if cluster.done is not None:
            w.order.learn(cluster.done)
        return None

    return converged(run) if aligned else run


@register("fence.acq_rel", "fence.sc", "fence.acquire", "fence.release", "membar")
def fence(ins: PtxInstruction, b: Binder) -> Straight:
    """Memory fences; `membar.cta/.gl/.sys` are fence.sc at CTA, GPU and system scope. One-sided fences act as both sides."""
    level = SCOPES["gpu"] if "gl" in ins.parts else scope(ins.parts, "gpu")

    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None:
            w.order.fence(level)

    return Straight(run)


@register("fence.proxy.async", "fence.proxy.async::generic", "membar.proxy")
def fence_async(ins: PtxInstruction, b: Binder) -> Straight:
    """Makes what the thread knows of visible to the async proxy, in one space or, unqualified, in both."""
    spaces = [p for p in ins.parts[3:] if p.startswith(("global", "shared"))]
    in_global = not spaces or "global" in spaces
    in_shared = not spaces or any(s.startswith("shared") for s in spaces)

    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None:
            w.order.publish_to_async(in_global, in_shared)

    return Straight(run)


@plain("fence.mbarrier_init")
def fence_barrier_init(w: Warp, mask: Mask) -> None:
    """`fence.mbarrier_init.release.cluster`: a light fence that covers only the warp's `mbarrier.init`s."""
    if w.world.race is not None:
        w.world.race.fence_barrier_init(w)


@plain("fence.proxy.alias", "setmaxnreg", "prefetch", "prefetchu", "discard", "applypriority", "createpolicy", "pmevent")
def hint(w: Warp, mask: Mask) -> None:
    """What has no effect on results."""


@register("nanosleep")
def sleep(ins: PtxInstruction, b: Binder) -> Any:
    """Lets other warps run; the time asked for does not matter here."""
    return lambda w, mask: YIELD


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
        first = issue.world.cancel(cta.cluster.grid)
        words = np.array([*(first or (0, 0, 0)), first is not None], np.uint32)
        for target, barrier in answers:
            actor = issue.load_actor(barrier)
            write_shared_chunks(target, Chunks(np.array([offset])), words.view(np.uint8), actor)
            barrier.finish(CHUNK, actor)

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
