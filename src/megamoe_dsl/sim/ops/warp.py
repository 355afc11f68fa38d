"""Instructions over the lanes of a warp (PTX ISA: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, activemask, bar.warp.sync)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..access_record import bits_of
from ..lanes import ALONE, LANE, Lanes, uniform
from ..operands import COMBINED
from . import Add, Binder, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, adds, register
from .access import line_of

_LANE = np.arange(32)


@lru_cache(maxsize=256)
def _named(names: int) -> Lanes:
    return (names >> _LANE & 1).astype(np.bool_)


def gathered(operand: str, b: Binder) -> Callable[[Handler], Handler]:
    """Decorates the handler of a `.sync` instruction with this member mask: it waits until all lanes named there, and that have not exited,
    are here. An executing lane that is not named is an error."""
    members = b.read(operand, np.uint32)

    def decorate(handler: Handler) -> Handler:
        def run(w: Warp, mask: Mask) -> Outcome | None:
            if mask is not None:
                masks = members(w)
                names = masks.item(0) if uniform(masks) else int(np.bitwise_or.reduce(masks[mask]))
                named = _named(names)
                own = named if uniform(masks) else (masks >> LANE & 1).astype(np.bool_)
                if b"\1" in (mask & ~own).tobytes():
                    raise SimError(f"lane executes a .sync instruction whose mask {names:#x} does not name it")
                if b"\1" in (named & ~mask & ~w.exited).tobytes():
                    return w.block(f"lanes of member mask {names:#x}")
            w.order.wait()
            return handler(w, mask)

        return run

    return decorate


@register("bar.warp.sync")
def warp_barrier(ins: PtxInstruction, b: Binder) -> Any:
    """Waits for the lanes of the member mask, and orders their memory accesses."""

    return gathered(ins.operands[0], b)(lambda w, mask: w.order.sync(w.order.lanes()))


@register("shfl.sync")
def shuffle(ins: PtxInstruction, b: Binder) -> Any:
    """shfl: the .b32 value of another lane of the segment, or the lane's own where there is none; `d|p` tells which."""
    mode = ins.parts[2]
    target, _, valid = ins.operands[0].partition("|")
    write, write_valid = b.write(target), b.write(valid) if valid else None
    value, offset, clamp = (b.read(o, np.uint32) for o in ins.operands[1:4])
    fixed = [b.value(o, np.int64).source for o in ins.operands[2:4]]
    constant = _sources(mode, *fixed) if all(isinstance(one, np.ndarray) for one in fixed) else None

    @gathered(ins.operands[4], b)
    def run(w: Warp, mask: Mask) -> None:
        source, inside = constant or _sources(mode, offset(w).astype(np.int64), clamp(w).astype(np.int64))
        if mask is not None and (absent := mask & ~mask[source]).any():
            lane = w.first(absent)  # whose result is undefined
            w.world.warnings[f"{line_of(w)}: shfl.sync of lane {lane} from lane {int(source[lane])}, which is not there"] += 1
        write(w, value(w).take(source), mask)
        if write_valid:
            write_valid(w, inside, mask)

    return run


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


Answer = Callable[[PtxInstruction, Warp, Lanes, Any], tuple[Any, ...]]


def _asking(*prefixes: str, dtype: type | None = None, asks: bool = True) -> Add:
    """Register `answer(instruction, warp, executing lanes, values)`, whose results go to the first operand, `d` or `d|p`; each is one for
    all lanes, or one per lane. Then come the values (of `dtype`, or the instruction's type) if it `asks`, and the members."""

    def make(answer: Answer, ins: PtxInstruction, b: Binder) -> Handler:
        writers = [b.write(target) for target in ins.operands[0].split("|")]
        value = b.read(ins.operands[1], dtype or b.dtype(ins)) if asks else lambda w: None

        @gathered(ins.operands[1 + asks], b)
        def run(w: Warp, mask: Mask) -> None:
            results = answer(ins, w, np.ones(32, np.bool_) if mask is None else mask, value(w))
            for write, result in zip(writers, results, strict=False):
                write(w, np.full(32, result), mask)

        return run

    return adds(prefixes, make)


@_asking("elect.sync", asks=False)
def elect(ins: PtxInstruction, w: Warp, here: Lanes, values: None) -> tuple[Any, ...]:
    """The run's leader is elected, or the lowest lane where that is no member (the ISA leaves the choice open but deterministic)."""
    lane = w.world.assumptions.leader
    if not here[lane]:
        lane = w.first(here)
    return LANE[lane], ALONE[lane]


@_asking("vote.sync", dtype=np.bool_)
def vote(ins: PtxInstruction, w: Warp, here: Lanes, flags: Lanes) -> tuple[Any, ...]:
    """`.any`, `.all` and `.uni` give a predicate, `.ballot` a .b32 mask of the executing lanes whose predicate holds."""
    if ins.parts[2] == "ballot":
        return (np.uint32(bits_of(flags & here)),)
    mine = flags[here]
    return ({"any": mine.any(), "all": mine.all(), "uni": mine.all() or not mine.any()}[ins.parts[2]],)


@_asking("match")
def match(ins: PtxInstruction, w: Warp, here: Lanes, values: Lanes) -> tuple[Any, ...]:
    """`.any` gives the mask of lanes with the same value; `.all` gives all members if they agree, else 0, and whether they do."""
    equal = (values[:, None] == values[None, :]) & here[None, :]
    if ins.parts[1] == "any":
        return (np.array([bits_of(row) for row in equal], np.uint32),)
    whole = bool(equal[here][:, here].all())
    return np.uint32(bits_of(here) if whole else 0), whole


@_asking("redux.sync")
def reduce(ins: PtxInstruction, w: Warp, here: Lanes, values: Lanes) -> tuple[Any, ...]:
    """`.f32` min and max drop NaN, or keep it with `.NaN`; `.abs` takes magnitudes."""
    operation = COMBINED[ins.parts[2]]
    if values.dtype == np.float32 and "NaN" not in ins.parts:
        operation = {"min": np.fmin, "max": np.fmax}[ins.parts[2]]
    mine = values[here]
    return (operation.reduce(np.abs(mine) if "abs" in ins.parts else mine).astype(values.dtype),)


@register("activemask")
def active_mask(ins: PtxInstruction, b: Binder) -> Straight:
    """The .b32 mask of executing lanes."""
    write = b.write(ins.operands[0])
    return Straight(lambda w, mask: write(w, np.full(32, bits_of(mask), np.uint32), mask))
