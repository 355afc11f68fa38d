"""CTA and cluster barriers, fences and hints (PTX ISA: bar, barrier.cluster, fence, membar, nanosleep, setmaxnreg)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..sync import SCOPES, BarrierState
from . import YIELD, Binder, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, register
from .common import scope

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
        if aligned and not w.converged(mask):
            return w.block("convergence of its warp at an aligned barrier")
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

    return run


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
        if aligned and not w.converged(mask):
            return w.block("convergence of its warp at an aligned barrier")
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

    return run


@register("barrier.cluster.wait")
def cluster_wait(ins: PtxInstruction, b: Binder) -> Any:
    """Waits for the generation that the thread arrived in, and acquires what its arrivals released."""
    aligned = "aligned" in ins.parts

    def run(w: Warp, mask: Mask) -> Outcome | None:
        if aligned and not w.converged(mask):
            return w.block("convergence of its warp at an aligned barrier")
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

    return run


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


@register("fence.mbarrier_init")
def fence_barrier_init(ins: PtxInstruction, b: Binder) -> Straight:
    """`fence.mbarrier_init.release.cluster`: a light fence that covers only the warp's `mbarrier.init`s."""

    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None:
            w.world.race.fence_barrier_init(w)

    return Straight(run)


@register(
    "fence.proxy.alias", "setmaxnreg", "prefetch", "prefetchu", "discard", "applypriority", "createpolicy", "pmevent",
)  # fmt: skip
def hint(ins: PtxInstruction, b: Binder) -> Straight:
    """No effect on a functional run."""
    return Straight(lambda w, mask: None)


@register("nanosleep")
def sleep(ins: PtxInstruction, b: Binder) -> Any:
    """Lets other warps run; the time asked for does not matter here."""
    return lambda w, mask: YIELD
