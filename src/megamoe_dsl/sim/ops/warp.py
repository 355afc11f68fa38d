"""Instructions over the lanes of a warp (PTX ISA: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, activemask, bar.warp.sync)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..lanes import ALONE, LANE, Lanes
from ..operands import Reader
from . import Binder, Handler, Mask, Outcome, PtxInstruction, SimError, Warp, register
from .access import line_of

_LANE = np.arange(32)
_FULL = 0xFFFFFFFF


def _constant(operand: str) -> int | None:
    try:
        return int(operand, 0) & _FULL
    except ValueError:
        return None


@lru_cache(maxsize=256)
def _named(names: int) -> Lanes:
    return (names >> _LANE & 1).astype(np.bool_)


class Members:
    """The member mask of a `.sync` instruction: waits until all lanes it names, and that have not exited, are here."""

    def __init__(self, operand: str, b: Binder) -> None:
        self.fixed = _constant(operand)
        self.read: Reader = b.read(operand, np.uint32)

    def gathered(self, handler: Handler) -> Handler:
        """A handler that blocks while a named lane is elsewhere; an executing lane that is not named is an error."""

        def run(w: Warp, mask: Mask) -> Outcome | None:
            if mask is not None and (wait := self._elsewhere(w, mask)) is not None:
                return wait
            if w.world.race is not None:
                w.order.wait()
            return handler(w, mask)

        return run

    def _elsewhere(self, w: Warp, mask: Lanes) -> Outcome | None:
        names, own = (self.fixed, None) if self.fixed is not None else self._of_lanes(w, mask)
        if own is None and names == _FULL and w.converged(mask):
            return None
        named = _named(names)
        if b"\1" in (mask & ~(named if own is None else own)).tobytes():
            raise SimError(f"lane executes a .sync instruction whose mask {names:#x} does not name it")
        if b"\1" in (named & ~mask & ~w.exited).tobytes():
            return w.block(f"lanes of member mask {names:#x}")
        return None

    def _of_lanes(self, w: Warp, mask: Lanes) -> tuple[int, Lanes | None]:
        """All lanes that the executing ones name, and, where their masks differ, which lanes name themselves: groups of a warp may each
        have a mask of their own in one instruction."""
        masks = self.read(w)
        here = masks[mask]
        if (here == here[0]).all():
            return int(here[0]), None
        return int(np.bitwise_or.reduce(here)), (masks >> _LANE & 1).astype(np.bool_)


@register("bar.warp.sync")
def warp_barrier(ins: PtxInstruction, b: Binder) -> Any:
    """Waits for the lanes of the member mask, and orders their memory accesses."""
    members = Members(ins.operands[0], b)

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None:
            w.order.sync(w.order.lanes())

    return run


@register("shfl.sync")
def shuffle(ins: PtxInstruction, b: Binder) -> Any:
    """shfl: the .b32 value of another lane of the segment, or the lane's own where there is none; `d|p` tells which."""
    mode = ins.parts[2]
    target, _, valid = ins.operands[0].partition("|")
    write, write_valid = b.write(target), b.write(valid) if valid else None
    value, offset, clamp = (b.read(o, np.uint32) for o in ins.operands[1:4])
    members = Members(ins.operands[4], b)
    fixed = _constant(ins.operands[2]), _constant(ins.operands[3])
    if mode == "idx" and fixed[1] == 31 and fixed[0] is not None and not valid:
        lane = fixed[0] & 31

        @members.gathered
        def broadcast(w: Warp, mask: Mask) -> None:
            if mask is not None and not mask[lane]:
                _warn(w, w.first(mask), lane)
            write(w, value(w)[lane : lane + 1].repeat(32), mask)

        return broadcast

    constant = None if None in fixed else _sources(mode, np.full(32, fixed[0]), np.full(32, fixed[1]))

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        source, inside = constant or _sources(mode, offset(w).astype(np.int64), clamp(w).astype(np.int64))
        if mask is not None and (absent := mask & ~mask[source]).any():
            _warn(w, lane := w.first(absent), int(source[lane]))
        write(w, value(w).take(source), mask)
        if write_valid:
            write_valid(w, inside, mask)

    return run


def _warn(w: Warp, lane: int, source: int) -> None:
    """The value of a lane that does not execute the shuffle is undefined (PTX ISA, "shfl.sync")."""
    w.world.warnings[f"{line_of(w)}: shfl.sync of lane {lane} from lane {source}, which is not there"] += 1


def _sources(mode: str, distance: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """The lane that each lane reads, and whether that is inside its segment (else it is the lane itself); `c` as the instruction has it."""
    distance, segment, limit = distance & 31, c >> 8 & 31, c & 31
    highest = (_LANE & segment) | (limit & ~segment)
    if mode == "idx":
        source = (_LANE & segment) | (distance & ~segment)
    elif mode == "up":
        source = _LANE - distance
    else:
        source = _LANE + distance if mode == "down" else _LANE ^ distance
    inside = source >= highest if mode == "up" else source <= highest
    return np.where(inside, source, _LANE), inside


@register("elect.sync")
def elect(ins: PtxInstruction, b: Binder) -> Any:
    """The run's leader is elected, or the lowest lane where that is no member (the ISA leaves the choice open but deterministic)."""
    target, _, chosen = ins.operands[0].partition("|")
    write, write_chosen, members = b.write(target), b.write(chosen), Members(ins.operands[1], b)

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        lane = w.world.assumptions.leader
        if mask is not None and not mask[lane]:
            lane = w.first(mask)
        write(w, LANE[lane : lane + 1].repeat(32), mask)
        write_chosen(w, ALONE[lane], mask)

    return run


def _bits(flags: Any) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


@register("vote.sync")
def vote(ins: PtxInstruction, b: Binder) -> Any:
    """`.any`, `.all` and `.uni` give a predicate, `.ballot` a .b32 mask of the executing lanes whose predicate holds."""
    mode = ins.parts[2]
    write, members = b.write(ins.operands[0]), Members(ins.operands[2], b)
    predicate = b.read(ins.operands[1], np.bool_)

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        flags = predicate(w)
        here = np.ones(32, np.bool_) if mask is None else mask
        if mode == "ballot":
            write(w, np.full(32, _bits(flags & here), np.uint32), mask)
            return
        mine = flags[here]
        result = {"any": mine.any(), "all": mine.all(), "uni": mine.all() or not mine.any()}[mode]
        write(w, np.full(32, bool(result)), mask)

    return run


@register("match")
def match(ins: PtxInstruction, b: Binder) -> Any:
    """`.any` gives the mask of lanes with the same value; `.all` gives all members if they agree, else 0, and whether they do."""
    everybody = ins.parts[1] == "all"
    target, _, same = ins.operands[0].partition("|")
    write, write_same, members = b.write(target), b.write(same) if same else None, Members(ins.operands[2], b)
    value = b.read(ins.operands[1], b.dtype(ins))

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        here = np.ones(32, np.bool_) if mask is None else mask
        v = value(w)
        equal = (v[:, None] == v[None, :]) & here[None, :]
        if everybody:
            whole = bool(equal[here][:, here].all())
            write(w, np.full(32, _bits(here) if whole else 0, np.uint32), mask)
            if write_same:
                write_same(w, np.full(32, whole), mask)
        else:
            write(w, np.array([_bits(row) for row in equal], np.uint32), mask)

    return run


_REDUCE = {
    "add": np.add.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce, "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


@register("redux.sync")
def reduce(ins: PtxInstruction, b: Binder) -> Any:
    """`.f32` min and max drop NaN, or keep it with `.NaN`; `.abs` takes magnitudes."""
    t = b.dtype(ins)
    operation, magnitude = _REDUCE[ins.parts[2]], "abs" in ins.parts
    if t == np.float32 and "NaN" not in ins.parts:
        operation = {"min": np.fmin.reduce, "max": np.fmax.reduce}[ins.parts[2]]
    write, value, members = b.write(ins.operands[0]), b.read(ins.operands[1], t), Members(ins.operands[2], b)

    @members.gathered
    def run(w: Warp, mask: Mask) -> None:
        v = value(w) if mask is None else value(w)[mask]
        result = operation(np.abs(v) if magnitude else v)
        write(w, np.full(32, np.asarray(result).astype(t), t), mask)

    return run


@register("activemask")
def active_mask(ins: PtxInstruction, b: Binder) -> Any:
    """The .b32 mask of executing lanes."""
    write = b.write(ins.operands[0])

    def run(w: Warp, mask: Mask) -> None:
        write(w, np.full(32, _FULL if mask is None else _bits(mask), np.uint32), mask)

    return run
