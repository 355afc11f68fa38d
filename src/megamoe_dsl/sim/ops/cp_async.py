"""Non-bulk asynchronous copies and stores: cp.async.ca/.cg, st.async, st.bulk.

Source: PTX ISA, "cp.async", "st.async", "st.bulk". cp.async and st.async work in the generic proxy.
"""

from __future__ import annotations

import numpy as np

from ..access_record import HAPPENED
from ..accessor import Actor
from ..async_groups import AsyncCopy, groups_of
from ..clock import Clock
from ..mbarrier import Mbarrier, finish_async_store, mbarrier_at
from ..memory import SMEM_RESERVED, Allocation
from ..operands import DTYPES, UNSIGNED
from . import Binder, Cta, Mask, PtxInstruction, SimError, Straight, Warp, each_lane, register, vector
from .common import origin, shared_target


def _engine_actor(w: Warp, kind: str) -> Actor | None:
    """A generic-proxy agent of the warp that performs its asynchronous operations of one kind."""
    race = w.world.race
    if race is None:
        return None
    agent = w.state.get((kind, "agent"))
    if agent is None:
        agent = w.state[(kind, "agent")] = race.agent(f"{w} {kind}", w.cta)
    count = w.state[(kind, "count")] = w.state.get((kind, "count"), 0) + 1
    clock = race.snapshot(w)
    clock.own()[HAPPENED, agent] = count
    return Actor(agent, clock, w.line, asynchronous=False)


class _LaneCopies(AsyncCopy):
    """One cp.async instruction: per active lane a destination offset, a source address and a number of bytes to read."""

    __slots__ = ("actor", "cta", "pieces", "size")

    def __init__(self, cta: Cta, pieces: list[tuple[int, int, int]], size: int, actor: Actor | None) -> None:
        super().__init__(actor.clock if actor else None)
        self.cta, self.pieces, self.size, self.actor = cta, pieces, size, actor

    def perform(self) -> None:
        if self.done:
            return
        cta, world, race = self.cta, self.cta.world, self.cta.world.race
        read: dict[tuple[Allocation, int], list[int]] = {}
        for offset, source, count in self.pieces:
            values = np.zeros(self.size, np.uint8)
            if count:
                values[:count] = world.memory.read(source, count)
                allocation, at = world.memory.find(source, count)
                read.setdefault((allocation, count), []).append(at)
            cta.shared.write(offset, values)
        if self.actor and race:
            for (allocation, count), places in read.items():
                if count == self.size and not allocation.base % count:
                    race.read_global(allocation, np.array(places), count, self.actor)
                else:
                    for at in places:
                        race.read_global(allocation, slice(at, at + count), 1, self.actor)
            race.write_shared(cta, np.array([offset for offset, _, _ in self.pieces]), self.size, self.actor)
        self.done = self.read_done = True
        world.progress += 1


@register("cp.async.ca", "cp.async.cg")
def build_cp_async(ins: PtxInstruction, b: Binder) -> Straight:
    """cp.async.{ca,cg}.shared.global [destination], [source], size [, source size | ignore predicate] [, policy]"""
    destination, source, size = b.address(ins.operands[0]), b.address(ins.operands[1]), int(ins.operands[2], 0)
    if size not in (4, 8, 16) or ("cg" in ins.parts and size != 16):
        raise SimError(f"cp.async of {size} bytes")
    extra = ins.operands[3] if len(ins.operands) > 3 and not ("L2::cache_hint" in ins.parts and len(ins.operands) == 4) else None
    ignores = extra is not None and b.kernel.registers.get(extra) == "pred"
    read_size = b.read(extra, np.bool_ if ignores else np.uint32) if extra is not None else None

    def run(w: Warp, mask: Mask) -> None:
        where, sources, counts = destination(w), source(w), read_size(w) if read_size else None
        lanes, pieces = w.lanes(mask), []
        for lane in lanes:
            cta, offset = shared_target(w, int(where[lane]))
            count = size if counts is None else (0 if counts[lane] else size) if ignores else int(counts[lane])
            if cta is not w.cta or offset % size or int(sources[lane]) % size or count > size:
                place = f"from {int(sources[lane]):#x} to {cta} smem+{offset - SMEM_RESERVED}"
                raise SimError(f"cp.async of {count}/{size} bytes {place}: misaligned, too long or not local")
            pieces.append((offset, int(sources[lane]), count))
        copy = _LaneCopies(w.cta, pieces, size, _engine_actor(w, "cp.async"))
        for lane in lanes:
            groups_of(w, "cp.async", lane).open.append(copy)
        w.world.post(copy.perform, origin(w))

    return Straight(run)


@register("cp.async.mbarrier.arrive")
def build_arrive(ins: PtxInstruction, b: Binder) -> Straight:
    """cp.async.mbarrier.arrive[.noinc] [address]: arrive when all earlier cp.async of the lane have completed."""
    address, increment = b.address(ins.operands[0]), "noinc" not in ins.parts

    @each_lane(address)
    def run(w: Warp, lane: int, where: int) -> None:
        barrier = mbarrier_at(*shared_target(w, where))
        if increment:
            barrier.pending += 1
        _post_arrive(w, barrier, groups_of(w, "cp.async", lane).so_far())

    return run


def _post_arrive(w: Warp, barrier: Mbarrier, copies: list[AsyncCopy]) -> None:
    race = w.world.race
    clock: Clock | None = race.clock() if race else None

    def arrive() -> None:
        for copy in copies:
            copy.perform()
            if clock is not None and copy.clock is not None:
                clock.join(copy.clock)
        if clock is not None:
            barrier.release(clock, w.cta, 0)
        barrier.arrive(1)

    w.world.post(arrive, origin(w))


@register("st.async")
def build_st_async(ins: PtxInstruction, b: Binder) -> Straight:
    """st.async[.weak].shared::cluster.mbarrier::complete_tx::bytes[.vec].type [address], value, [mbarrier]; CUTLASS writes .type.vec"""
    if "mbarrier::complete_tx::bytes" not in ins.parts:
        raise SimError(f"{ins.opcode}: only the mbarrier form is modeled")
    size = next(np.dtype(DTYPES[part]).itemsize for part in reversed(ins.parts) if part in DTYPES)
    address, barrier_address = b.address(ins.operands[0]), b.address(ins.operands[2])
    values = [b.read(text, UNSIGNED[size]) for text in vector(ins.operands[1])]
    total = size * len(values)

    def run(w: Warp, mask: Mask) -> None:
        where, barriers = address(w), barrier_address(w)
        data = np.stack([value(w) for value in values], axis=1)
        actor = _engine_actor(w, "st.async")
        for lane in w.lanes(mask):
            cta, offset = shared_target(w, int(where[lane]))
            barrier_cta, barrier_offset = shared_target(w, int(barriers[lane]))
            if barrier_cta is not cta or offset % total:
                place = f"{cta} smem+{offset - SMEM_RESERVED}"
                raise SimError(f"st.async to {place} with an mbarrier of {barrier_cta}: misaligned or not the same CTA")
            _post_store(w, cta, offset, data[lane].copy().view(np.uint8), mbarrier_at(cta, barrier_offset), actor)

    return Straight(run)


def _post_store(w: Warp, cta: Cta, offset: int, values: np.ndarray, barrier: Mbarrier, actor: Actor | None) -> None:
    def store() -> None:
        if actor and w.world.race:
            w.world.race.write_shared(cta, slice(offset, offset + len(values)), 1, actor)
        cta.shared.write(offset, values)
        finish_async_store(barrier, len(values), actor.clock if actor else None)

    w.world.post(store, origin(w))


@register("red.async")
def build_red_async(ins: PtxInstruction, b: Binder) -> Straight:
    """Claims the prefix, so that `red` does not take it."""
    raise SimError(f"{ins.opcode} is not modeled")


@register("st.bulk")
def build_st_bulk(ins: PtxInstruction, b: Binder) -> Straight:
    """st.bulk[.weak].shared::cta [address], size, 0: zero-fill, a generic-proxy write."""
    address, sizes = b.address(ins.operands[0]), b.read(ins.operands[1], np.uint64)

    @each_lane(address, sizes)
    def run(w: Warp, lane: int, where: int, count: int) -> None:
        cta, offset = shared_target(w, where)
        if offset % 8 or count % 8 or cta is not w.cta:
            raise SimError(f"st.bulk of {count} bytes at {cta} smem+{offset - SMEM_RESERVED}: multiples of 8 in the CTA's own memory")
        if w.world.race:
            w.world.race.write_shared(cta, slice(offset, offset + count), 1, w)
        cta.shared.write(offset, np.zeros(count, np.uint8))
        w.world.progress += 1

    return run
