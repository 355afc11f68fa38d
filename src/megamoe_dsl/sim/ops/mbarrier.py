"""mbarrier instructions (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

import numpy as np

from ..access_record import mask_of
from ..lanes import uniform
from ..mbarrier import BYTES, Mbarrier, acquire_into_warp, mbarrier_at, release_from_warp, scope_of
from . import YIELD, Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, each_lane, register
from .common import by_address, shared_target

_SUSPEND_SWEEPS = 16
"""How long a try_wait may suspend before it answers false: software may use it to peek, so it must not block for ever."""


_ALL, _NONE = np.ones(32, np.bool_), np.zeros(32, np.bool_)


def _barrier(w: Warp, address: int) -> Mbarrier:
    barrier = mbarrier_at(*shared_target(w, address))
    race = w.world.race
    if race and (key := (w, w.order.lanes())) not in barrier.checked:
        barrier.checked.add(key)
        shadow = barrier.cta.shared.shadow
        if shadow is not None:
            race.strong(shadow, shadow.index(np.array([barrier.offset]), BYTES), w)
    return barrier


@register("mbarrier.init")
def build_init(ins: PtxInstruction, b: Binder) -> Straight:
    """mbarrier.init [address], count: a barrier whose phases have so many arrivals."""
    address, count = b.address(ins.operands[0]), b.read(ins.operands[1], np.uint32)

    @each_lane(address, count)
    def run(w: Warp, lane: int, where: int, arrivals: int) -> None:
        cta, offset = shared_target(w, where)
        if offset % BYTES:
            raise SimError(f"mbarrier.init at smem address {where:#x}: must be 8-byte aligned")
        if w.world.race:
            w.world.race.write_shared(cta, slice(offset, offset + BYTES), BYTES, w.world.race.barrier_init(w))
        cta.shared.write(offset, np.zeros(BYTES, np.uint8))
        if not cta.state.setdefault("mbarrier exit check", False):
            cta.state["mbarrier exit check"] = True
            cta.exit_checks.append(lambda: _exit_check(cta))
        cta.mbarriers[offset] = Mbarrier(cta, offset, arrivals)
        w.world.progress += 1

    return run


def _exit_check(cta: Cta) -> None:
    for _, barrier in sorted(cta.mbarriers.items()):
        if text := barrier.left_over():
            cta.world.warnings[text] += 1


@register("mbarrier.inval")
def build_inval(ins: PtxInstruction, b: Binder) -> Straight:
    """mbarrier.inval [address]: the bytes are memory again."""
    address = b.address(ins.operands[0])

    @each_lane(address)
    def run(w: Warp, lane: int, where: int) -> None:
        barrier = _barrier(w, where)
        if w.world.race:
            w.world.race.write_shared(barrier.cta, slice(barrier.offset, barrier.offset + BYTES), BYTES, w)
        del barrier.cta.mbarriers[barrier.offset]

    return run


@register("mbarrier.arrive")
def build_arrive(ins: PtxInstruction, b: Binder) -> Straight:
    """mbarrier.arrive[.expect_tx] [state,] [address] [, count]"""
    operands = list(ins.operands)
    state = b.write(operands.pop(0)) if not operands[0].startswith("[") else None
    address = b.address(operands.pop(0))
    argument = b.read(operands[0], np.uint32) if operands else None
    expect = "expect_tx" in ins.parts
    scope, relaxed = scope_of(ins.parts), "relaxed" in ins.parts

    def run(w: Warp, mask: Mask) -> None:
        where, values = address(w), argument(w) if argument else None
        token = np.zeros(32, np.uint64) if state else None
        for target, lanes in by_address(w.lanes(mask), where):
            barrier = _barrier(w, target)
            if token is not None:
                token[lanes] = barrier.phase
            if w.world.race:
                release_from_warp(barrier, w, scope, relaxed, w.order.whole(mask_of(lanes)))
            total = sum(int(values[lane]) for lane in lanes) if values is not None else len(lanes)
            if expect:
                barrier.arrive(len(lanes), expected_bytes=total)
            else:
                barrier.arrive(total)
            w.world.progress += 1
        if state and token is not None:
            state(w, token, mask)

    return Straight(run)


@register("mbarrier.expect_tx", "mbarrier.complete_tx")
def build_transactions(ins: PtxInstruction, b: Binder) -> Straight:
    """mbarrier.expect_tx / complete_tx [address], count"""
    address, count = b.address(ins.operands[0]), b.read(ins.operands[1], np.uint32)
    change = Mbarrier.expect if ins.parts[1] == "expect_tx" else Mbarrier.complete

    @each_lane(address, count)
    def run(w: Warp, lane: int, where: int, num_bytes: int) -> None:
        change(_barrier(w, where), num_bytes)
        w.world.progress += 1

    return run


@register("mbarrier.try_wait", "mbarrier.test_wait")
def build_wait(ins: PtxInstruction, b: Binder) -> Handler:
    """mbarrier.try_wait[.parity] done, [address], state-or-parity [, hint]"""
    done, address = b.write(ins.operands[0]), b.address(ins.operands[1])
    parity_form, suspends = "parity" in ins.parts, ins.parts[1] == "try_wait"
    expected = b.read(ins.operands[2], np.uint32 if parity_form else np.uint64)
    scope, relaxed = scope_of(ins.parts), "relaxed" in ins.parts
    key = ("try_wait", ins.line)

    bits = 1 if parity_form else -1

    def look(w: Warp, target: int) -> Mbarrier:
        barrier = _barrier(w, target)
        if barrier.cta is not w.cta:
            raise SimError(f"{ins.parts[1]} on the barrier of another CTA ({barrier!r})")
        return barrier

    def run(w: Warp, mask: Mask) -> Outcome | None:
        where, wanted = address(w), expected(w)
        blocker: tuple[Mbarrier, int] | None = None
        if uniform(where) and uniform(wanted):  # registers of lanes that are not here mostly agree too
            barrier, result = look(w, int(where[0])), _ALL
            if not (barrier.phase ^ int(wanted[0])) & bits:
                blocker, result = (barrier, barrier.phase), _NONE
            elif w.world.race:
                acquire_into_warp(barrier, w, scope, relaxed, w.order.lanes())
        else:
            result = np.zeros(32, np.bool_)
            for target, lanes in by_address(w.lanes(mask), where):
                barrier = look(w, target)
                for value in set(wanted[lanes].tolist()):
                    asking = [lane for lane in lanes if wanted[lane] == value]
                    if not (barrier.phase ^ value) & bits:
                        blocker = (barrier, barrier.phase)
                        continue
                    result[asking] = True
                    if w.world.race:
                        acquire_into_warp(barrier, w, scope, relaxed, w.order.whole(mask_of(asking)))
        if blocker is None:
            w.state.pop(key, None)
        elif suspends and (outcome := _suspend(w, key, *blocker)):
            return outcome
        done(w, result, mask)
        return None if blocker is None else YIELD

    return run


def _suspend(w: Warp, key: tuple[str, int], barrier: Mbarrier, phase: int) -> Outcome | None:
    world = w.world
    deadline = w.state.setdefault(key, world.sweeps + _SUSPEND_SWEEPS)
    if world.sweeps >= deadline:
        del w.state[key]
        w.why = f"{barrier!r}: {barrier}"
        return None
    return w.block(lambda: f"{barrier!r}: {barrier}", lambda: barrier.phase != phase or world.sweeps >= deadline)
