"""Execution of one warp: fragments (lanes at one program counter), divergence and reconvergence.

The lowest program counter runs first and stops where it would meet another fragment, so branches re-converge; now and then a random
fragment goes first, so that lanes which spin on what other lanes of their warp must do cannot starve them (PTX ISA, independent
thread scheduling).
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from .cta import BLOCK, EXIT, PARK, YIELD, Fragment, Warp
from .errors import SimError
from .interfaces import RunState
from .lanes import Lanes, Mask
from .late_loads import land_some
from .program import BRANCH, STRAIGHT, Unit, select
from .report import describe_line

ZEROS = bytes(32)
NOBODY = 1 << 60
_PC = attrgetter("pc")
MAX_REST = 15


def run_warp(world: RunState, w: Warp, quantum: int) -> None:
    """Run up to about `quantum` instructions, until the warp blocks or only polls."""
    fragments = w.fragments
    executed = 0
    for fragment in fragments:
        fragment.polled = False
    try:
        if w.program.late:
            land_some(world, w)
        while executed < quantum and fragments:
            if len(fragments) == 1:
                n = _run_fragment(world, w, fragments[0], quantum - executed, NOBODY)
            else:
                _merge(fragments)
                order = list(fragments)
                if world.rng.random() < 0.1:
                    world.rng.shuffle(order)
                n = 0
                for fragment in order:
                    if not fragment.polled:
                        others = next((one.pc for one in fragments if one is not fragment and not one.polled), NOBODY)  # they are sorted
                        n = _run_fragment(world, w, fragment, quantum - executed, others)
                        if n:
                            break
            executed += n
            if not n or (len(fragments) == 1 and fragments[0].polled):
                break
    except SimError as error:
        raise type(error)(_context(world, w, str(error))) from None
    except Exception as error:
        error.add_note(_context(world, w, "simulator"))
        raise
    world.instructions += executed
    if not fragments:
        w.done = True
        for barrier in w.cta.barriers.values():
            if barrier.whole:  # it may now be complete
                barrier.expect(w.cta.live_threads())
        world.progress += 1
    elif executed >= quantum:
        world.progress += 1  # long arithmetic without a poll is progress
        w.sleep = 0
    elif any(f.polled for f in fragments):
        w.sleep = min(2 * w.sleep + 1, MAX_REST)
        w.rest = world.rng.randint(0, w.sleep)
    elif executed:
        w.sleep = 0


def _context(world: RunState, w: Warp, text: str) -> str:
    ins = next((i for i in w.kernel.code if i.line == w.line), None)
    line = describe_line(w.line, world.kernels[w.kernel], (ins and ins.source) or "")
    return f"{text} [{line}: {ins.opcode if ins else '?'}; {w}]"


def _merge(fragments: list[Fragment]) -> None:
    fragments.sort(key=_PC)
    i = 0
    while i + 1 < len(fragments):
        a, b = fragments[i], fragments[i + 1]
        if a.pc == b.pc and not (a.parked or b.parked):
            assert a.mask is not None and b.mask is not None
            a.set(a.mask | b.mask)
            a.polled = a.polled and b.polled
            del fragments[i + 1]
        else:
            i += 1


def _run_fragment(world: RunState, w: Warp, f: Fragment, budget: int, meet: int) -> int:
    """Run one fragment until it blocks, polls, splits, exits, uses up the budget or reaches `meet`; returns instructions executed."""
    units, R, pc, mask = w.program.units, w.R, f.pc, f.mask
    n = 0
    while n < budget:
        unit = units[pc]
        kind = unit.kind
        if kind == STRAIGHT:
            if mask is None:
                unit.full(w, R)
            else:
                unit.masked(w, R, mask)
            n += unit.count
            pc = unit.next
        elif kind == BRANCH:
            n += 1
            if unit.predicate is None:
                pc = unit.target
            else:
                p = R[unit.predicate]
                bits = p.tobytes() if mask is None else (p & mask).tobytes()
                if bits == f.bits:
                    pc = unit.next if unit.negated else unit.target
                elif bits == ZEROS:
                    pc = unit.target if unit.negated else unit.next
                else:
                    _split(w, f, unit, p)
                    return n
        else:
            m = mask
            w.line = unit.line
            if unit.predicate is not None:
                m = select(R[unit.predicate], unit.negated, mask)
                if m is False:
                    n += 1
                    pc = f.pc = unit.next
                    continue
            f.pc, w.mask = pc, m
            outcome = unit.handler(w, m)
            if outcome is BLOCK or outcome is PARK:
                f.why, f.parked = w.why, outcome is PARK
                return n
            f.why, f.parked = None, False
            n += 1
            if outcome is EXIT:
                _leave(world, w, f, m, unit.next)
                return n
            pc = unit.next
            if outcome is YIELD:
                f.pc, f.polled = pc, True
                return n
        f.pc = pc
        if pc >= meet:
            return n
    return n


def _split(w: Warp, f: Fragment, unit: Unit, p: Lanes) -> None:
    taken = ~p if unit.negated else p
    if f.mask is not None:
        taken = taken & f.mask
    rest = ~taken if f.mask is None else f.mask & ~taken
    f.pc = unit.next
    f.set(rest)
    w.fragments.append(Fragment(unit.target, taken))


def _leave(world: RunState, w: Warp, f: Fragment, m: Mask, after: int) -> None:
    world.progress += 1
    leaving = np.ones(32, np.bool_) if m is None else m
    barrier = w.cta.cluster.barrier  # which no longer waits for them
    barrier.expect(barrier.expected - int(leaving.sum()))
    w.exited = w.exited | leaving
    rest = ~leaving if f.mask is None else f.mask & ~leaving
    if rest.any():
        f.pc = after
        f.set(rest)
    else:
        w.fragments.remove(f)
