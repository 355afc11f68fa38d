"""mbarrier objects: phase, pending arrivals and transaction bytes.

Source: PTX ISA, "mbarrier" ("Contents of the mbarrier object", "Phase Completion of the mbarrier object"). A phase completes when no
arrival is pending and the transaction count is zero; completion starts the next phase with the full arrival count.
"""

from __future__ import annotations

import numpy as np

from ..access_record import mask_of
from ..clock import Actor
from ..memory import SMEM_RESERVED
from ..sync import SCOPES, SyncPoint
from . import ADDRESS, YIELD, Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, each_lane, register
from .access import by_value, scope, shared_target

MAX_COUNT = (1 << 20) - 1
BYTES = 8
INIT = "mbarrier.init"


class Mbarrier:
    """One barrier object in the shared memory of `cta`."""

    def __init__(self, cta: Cta, offset: int, count: int) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise SimError(f"mbarrier.init with count {count}: must be between 1 and {MAX_COUNT}")
        self.cta, self.offset = cta, offset
        self.count = self.pending = count  # arrivals expected per phase, and still missing in this one
        self.transactions = self.phase = 0  # bytes expected minus bytes that arrived; number of completed phases
        self.point, self.done = SyncPoint(), SyncPoint()  # what arrivals of this phase, and of completed ones, tell who observes the end
        self.checked: set[tuple[Warp, int]] = set()  # warps and lanes whose access was checked against the initialization
        self.agent: int | None = None  # the TMA engine behind this barrier, registered at its first load
        self.accesses = 0

    def __repr__(self) -> str:
        return f"mbarrier {self.cta} smem+{self.offset - SMEM_RESERVED}"

    def __str__(self) -> str:
        arrived = self.count - self.pending
        return f"{arrived}/{self.count} arrived, {self.transactions} transaction bytes missing, phase {self.phase}, parity {self.phase & 1}"

    def arrive(self, count: int, expected_bytes: int = 0) -> None:
        """Arrivals of threads or engines, after raising the transaction count by `expected_bytes`."""
        if count > self.pending:
            raise SimError(f"{self!r}: {count} arrivals but {self.pending} of {self.count} are pending: more arrivals than expected")
        self.expect(expected_bytes)
        self.pending -= count
        self._check()

    def complete(self, count: int) -> None:
        self.expect(-count)
        self._check()

    def finish(self, count: int, actor: Actor) -> None:
        """A `complete_tx` that follows an asynchronous copy: release at cluster scope in the CTA of the barrier."""
        if actor:
            self.point.release(actor.clock, self.cta, SCOPES["cluster"])
        self.complete(count)

    def expect(self, count: int) -> None:
        self.transactions += count
        if abs(self.transactions) > MAX_COUNT:
            raise SimError(f"{self!r}: transaction count {self.transactions} is out of range (at most {MAX_COUNT})")

    def _check(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.count
            self.done = self.point.copy()
            self.cta.world.progress += 1


def mbarrier_at(cta: Cta, offset: int) -> Mbarrier:
    """The barrier at a byte offset in the shared memory of `cta`; an error when there is none."""
    barrier = cta.mbarriers.get(offset)
    if barrier is None:
        raise SimError(f"no initialized mbarrier at {cta} smem+{offset - SMEM_RESERVED}")
    return barrier  # type: ignore[no-any-return]


UNQUALIFIED = "cluster"
"""The scope of an operation that names none: the ISA says `.cta`, but CUTLASS pipelines rely on unqualified remote arrives."""
_SUSPEND_SWEEPS = 16  # How long a try_wait may suspend before it answers false: software may use it to peek, so it must not block for ever.


def _barrier(w: Warp, address: int) -> Mbarrier:
    barrier = mbarrier_at(*shared_target(w, address))
    if w.world.race and (key := (w, w.order.lanes())) not in barrier.checked:
        barrier.checked.add(key)
        w.world.race.strong_bytes(barrier.cta.shared, np.array([barrier.offset]), BYTES, w)
    return barrier


@each_lane("mbarrier.init", reads=(ADDRESS, np.uint32))
def initialize(ins: PtxInstruction, w: Warp, lane: int, where: int, arrivals: int) -> None:
    """mbarrier.init [address], count: a barrier whose phases have so many arrivals."""
    cta, offset = shared_target(w, where)
    if offset % BYTES:
        raise SimError(f"mbarrier.init at smem address {where:#x}: must be 8-byte aligned")
    actor = w.world.race.engine(w, INIT, w.order.known(), asynchronous=False)  # `fence.mbarrier_init` releases its writes and no others
    w.order.know(actor.agent, actor.clock.at(actor.agent))
    w.world.race.write_bytes(cta.shared, slice(offset, offset + BYTES), BYTES, actor)
    cta.shared.write(offset, np.zeros(BYTES, np.uint8))
    cta.exit_checks["mbarriers"] = _exit_check
    cta.mbarriers[offset] = Mbarrier(cta, offset, arrivals)
    w.world.progress += 1


def _exit_check(cta: Cta) -> None:
    for _, barrier in sorted(cta.mbarriers.items()):
        if barrier.pending != barrier.count or barrier.transactions:
            cta.world.warnings[f"{barrier!r} left mid-phase at exit ({barrier})"] += 1


@each_lane("mbarrier.inval", reads=(ADDRESS,))
def invalidate(ins: PtxInstruction, w: Warp, lane: int, where: int) -> None:
    """mbarrier.inval [address]: the bytes are memory again."""
    barrier = _barrier(w, where)
    w.world.race.write_bytes(barrier.cta.shared, slice(barrier.offset, barrier.offset + BYTES), BYTES, w)
    del barrier.cta.mbarriers[barrier.offset]


@register("mbarrier.arrive")
def build_arrive(ins: PtxInstruction, b: Binder) -> Straight:
    """mbarrier.arrive[.expect_tx] [state,] [address] [, count]"""
    operands = list(ins.operands)
    state = b.write(operands.pop(0)) if not operands[0].startswith("[") else None
    address = b.address(operands.pop(0))
    argument = b.read(operands[0], np.uint32) if operands else None
    expect = "expect_tx" in ins.parts
    level, relaxed = scope(ins.parts, UNQUALIFIED), "relaxed" in ins.parts

    def run(w: Warp, mask: Mask) -> None:
        where, values = address(w), argument(w) if argument else None
        token = np.zeros(32, np.uint64) if state else None
        for (target,), lanes in by_value(w.lanes(mask), where):
            barrier = _barrier(w, target)
            if token is not None:
                token[lanes] = barrier.phase
            if w.world.race:
                arriving = w.order.whole(mask_of(lanes))
                barrier.point.publish(w.order, w.cta, level, arriving, relaxed)
                for clock in w.order.light_fences(arriving) if relaxed else ():
                    barrier.point.release(clock, w.cta, level)
            total = sum(int(values[lane]) for lane in lanes) if values is not None else len(lanes)
            if expect:
                barrier.arrive(len(lanes), expected_bytes=total)
            else:
                barrier.arrive(total)
            w.world.progress += 1
        if state and token is not None:
            state(w, token, mask)

    return Straight(run)


@each_lane("mbarrier.expect_tx", "mbarrier.complete_tx", reads=(ADDRESS, np.uint32))
def change_transactions(ins: PtxInstruction, w: Warp, lane: int, where: int, num_bytes: int) -> None:
    """mbarrier.expect_tx / complete_tx [address], count"""
    change = Mbarrier.expect if ins.parts[1] == "expect_tx" else Mbarrier.complete
    change(_barrier(w, where), num_bytes)
    w.world.progress += 1


@register("mbarrier.try_wait", "mbarrier.test_wait")
def build_wait(ins: PtxInstruction, b: Binder) -> Handler:
    """mbarrier.try_wait[.parity] done, [address], state-or-parity [, hint]"""
    done, address = b.write(ins.operands[0]), b.address(ins.operands[1])
    parity_form, suspends = "parity" in ins.parts, ins.parts[1] == "try_wait"
    expected = b.read(ins.operands[2], np.uint32 if parity_form else np.uint64)
    level, relaxed = scope(ins.parts, UNQUALIFIED), "relaxed" in ins.parts
    key, bits = ("try_wait", ins.line), 1 if parity_form else -1

    def run(w: Warp, mask: Mask) -> Outcome | None:
        blocker: tuple[Mbarrier, int] | None = None
        result = np.zeros(32, np.bool_)
        for (target, state), asking in by_value(w.lanes(mask), address(w), expected(w)):
            barrier = _barrier(w, target)
            if barrier.cta is not w.cta:
                raise SimError(f"{ins.parts[1]} on the barrier of another CTA ({barrier!r})")
            if not (barrier.phase ^ state) & bits:
                blocker = (barrier, barrier.phase)
                continue
            result[asking] = True
            if not w.world.race:
                continue
            whole = w.order.whole(mask_of(asking))
            if relaxed:  # the lanes learn at a later fence what the completed phases released
                barrier.done.put_off(w.order, w.cta, level, whole, barrier.cta)
            elif (missed := barrier.done.acquire(w.order, w.cta, level, whole)) is not None:
                w.world.race.report("insufficient mbarrier scope", missed, "mbarrier", repr(barrier), 0, w)
        if blocker is None:
            w.state.pop(key, None)
        elif suspends:
            (barrier, phase), world = blocker, w.world
            deadline = w.state.setdefault(key, world.sweeps + _SUSPEND_SWEEPS)
            if world.sweeps < deadline:
                return w.block(lambda: f"{barrier!r}: {barrier}", lambda: barrier.phase != phase or world.sweeps >= deadline)
            del w.state[key]
            w.why = f"{barrier!r}: {barrier}"
        done(w, result, mask)
        return None if blocker is None else YIELD

    return run
