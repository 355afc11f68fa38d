"""Linear copies: cp.async.bulk, cp.reduce.async.bulk, cp.async.ca/.cg, st.async, st.bulk, and their async-groups.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Bulk copy", "cp.async", "st.async", "st.bulk". Size and
addresses of bulk copies are multiples of 16. cp.async and st.async work in the generic proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from .. import tma_engine as tma
from ..access_record import HAPPENED, mask_of
from ..chunks import CHUNK, Chunks, GlobalRows
from ..clock import Actor, Clock
from ..memory import SMEM_RESERVED, Allocation, Bytes
from ..operands import DTYPES, UNSIGNED
from . import Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, each_lane, register, vector
from .access import origin, shared_target
from .mbarrier import Mbarrier, mbarrier_at


def _aligned(**values: int) -> None:
    for name, value in values.items():
        if value % CHUNK:
            raise SimError(f"bulk copy: {name} {value:#x} must be a multiple of {CHUNK}")


@lru_cache(maxsize=4096)
def _chunks(offset: int, size: int) -> Chunks:
    return Chunks(np.arange(offset, offset + size, CHUNK))


@register("cp.async.bulk")
def build_bulk(ins: PtxInstruction, b: Binder) -> Straight:
    """Load (`.shared::* .global`), store (`.global .shared::cta`) or copy between CTAs (`.shared::cluster .shared::cta`)."""
    spaces = [part for part in ins.parts if part == "global" or part.startswith("shared")]
    return _build_store(ins, b, None) if spaces[0] == "global" else _build_load(ins, b, spaces[1] == "global")


@register("cp.reduce.async.bulk")
def build_reduce(ins: PtxInstruction, b: Binder) -> Straight:
    """Combine with global memory: cp.reduce.async.bulk.global.shared::cta.bulk_group.OP[.noftz].TYPE [destination], [source], size"""
    if "global" not in ins.parts:
        raise SimError(f"{ins.opcode}: only reductions into global memory are modeled")
    after = ins.parts[ins.parts.index("bulk_group") + 1 :]
    operation, element = [part for part in after if part not in ("noftz", "L2::cache_hint")][:2]
    return _build_store(ins, b, tma.Reduction(operation, element))


def _build_load(ins: PtxInstruction, b: Binder, from_global: bool) -> Straight:
    """[destination], [source], size, [mbarrier] [, cta mask] [, policy]"""
    destination, source, barrier_address = (b.address(ins.operands[k]) for k in (0, 1, 3))
    sizes = b.read(ins.operands[2], np.uint32)
    multicast = b.read(ins.operands[4], np.uint16) if "multicast::cluster" in ins.parts else None

    @each_lane(destination, source, sizes, barrier_address, multicast)
    def run(w: Warp, lane: int, where: int, start: int, count: int, barrier: int, ctas: int | None) -> None:
        cta, offset = shared_target(w, where)
        barrier_cta, barrier_offset = shared_target(w, barrier)
        _aligned(destination=offset, source=start, size=count)
        if ctas is None and barrier_cta is not cta:
            raise SimError(f"bulk load into {cta} signals an mbarrier of {barrier_cta}")
        issue = tma.Issue.of(w, lane)
        for target in [cta] if ctas is None else [one for rank, one in enumerate(w.cta.cluster.ctas) if ctas >> rank & 1]:
            target.shared.check(offset, offset + count)
            fetch = None if from_global else shared_target(w, start)
            action = partial(_load, issue, start, fetch, target, offset, count, mbarrier_at(target, barrier_offset))
            w.world.post(action, origin(w))

    return run


def _load(issue: tma.Issue, start: int, fetch: tuple[Cta, int] | None, target: Cta, offset: int, count: int, barrier: Mbarrier) -> None:
    actor = issue.load_actor(barrier)
    if count:
        if fetch is None:
            values = tma.read_global_rows(target, GlobalRows(np.array([start]), count), actor)
        else:
            values = tma.read_shared_chunks(fetch[0], _chunks(fetch[1], count), "bulk copy", actor)
        tma.write_shared_chunks(target, _chunks(offset, count), values, actor)
    barrier.finish(count, actor)


def _build_store(ins: PtxInstruction, b: Binder, reduction: tma.Reduction | None) -> Straight:
    destination, source, sizes = b.address(ins.operands[0]), b.address(ins.operands[1]), b.read(ins.operands[2], np.uint32)
    if "cp_mask" in ins.parts:
        raise SimError(f"{ins.opcode}: .cp_mask is not modeled")

    @each_lane(destination, source, sizes)
    def run(w: Warp, lane: int, start: int, where: int, count: int) -> None:
        cta, offset = shared_target(w, where)
        _aligned(destination=start, source=offset, size=count)
        if cta is not w.cta:
            raise SimError(f"bulk store from the shared memory of {cta}")
        cta.shared.check(offset, offset + count)
        _store(w, lane, start, offset, count, reduction)

    return run


def post_store(w: Warp, lanes: list[int], read: Callable[[Actor | None], Bytes], write: Callable[[Bytes, Actor | None], None]) -> None:
    """A store that lanes have issued, once, in two steps: `read` its source in shared memory, `write` its destination."""
    world, label = w.world, origin(w)
    actors = tma.StoreActors.of(w, lanes[0])
    copy = tma.AsyncCopy(actors.clock if actors else None, actors.destination.agent if actors else -1)
    for lane in lanes:
        tma.groups_of(w, "bulk", lane).open.append(copy)

    def first() -> None:
        values = read(actors.source if actors else None)
        copy.read_done = True
        world.post(lambda: second(values), label)

    def second(values: Bytes) -> None:
        write(values, actors.destination if actors else None)
        copy.done = True

    world.post(first, label)


def _store(w: Warp, lane: int, start: int, offset: int, count: int, reduction: tma.Reduction | None) -> None:
    cta, rows = w.cta, GlobalRows(np.array([start]), count)

    def read(actor: Actor | None) -> Bytes:
        return tma.read_shared_chunks(cta, _chunks(offset, count), "bulk store", actor) if count else np.zeros(0, np.uint8)

    def write(values: Bytes, actor: Actor | None) -> None:
        if count:
            tma.write_global_rows(cta, rows, values.reshape(1, -1), reduction, actor)

    post_store(w, [lane], read, write)


@register("cp.async.bulk.commit_group", "cp.async.commit_group")
def build_commit(ins: PtxInstruction, b: Binder) -> Straight:
    """Close the open group of every lane."""
    kind = "bulk" if "bulk" in ins.parts else "cp.async"

    def run(w: Warp, mask: Mask) -> None:
        for lane in w.lanes(mask):
            tma.groups_of(w, kind, lane).commit()
        w.world.progress += 1

    return Straight(run)


@register("cp.async.bulk.wait_group", "cp.async.wait_group", "cp.async.wait_all")
def build_wait(ins: PtxInstruction, b: Binder) -> Handler:
    """Wait until at most N of the most recent groups are pending."""
    kind, read = "bulk" if "bulk" in ins.parts else "cp.async", "read" in ins.parts
    keep = int(ins.operands[0], 0) if ins.operands else 0
    commit_first = ins.parts[-1] == "wait_all"

    def run(w: Warp, mask: Mask) -> Outcome | None:
        by_lane = {lane: w.state[(kind, lane)] for lane in w.lanes(mask) if (kind, lane) in w.state}
        groups = by_lane.values()
        if commit_first:
            for group in groups:
                if group.open:
                    group.commit()
        if not all(group.ready(keep, read) for group in groups):
            return w.block(f"{ins.opcode} {keep}", lambda: all(group.ready(keep, read) for group in groups))
        learned: dict[int, tuple[Clock, list[int]]] = {}  # lanes that have waited for the same copies learn together
        for lane, group in by_lane.items():
            for clock in group.retire(keep, read):
                learned.setdefault(id(clock), (clock, []))[1].append(lane)
        for clock, lanes in learned.values():
            w.order.learn(clock, w.order.whole(mask_of(lanes)))
        return None

    return run


def _engine_actor(w: Warp, kind: str) -> Actor | None:
    """A generic-proxy agent of the warp that performs its asynchronous operations of one kind."""
    race = w.world.race
    if race is None:
        return None
    agent, count = race.engine(w, kind)
    clock = w.order.snapshot()
    clock.own()[HAPPENED, agent] = count
    return Actor(agent, clock, w.line, asynchronous=False)


class _LaneCopies(tma.AsyncCopy):
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
                    race.read_bytes(allocation, np.array(places), count, self.actor)
                else:
                    for at in places:
                        race.read_bytes(allocation, slice(at, at + count), 1, self.actor)
            race.write_bytes(cta.shared, np.array([offset for offset, _, _ in self.pieces]), self.size, self.actor)
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
            tma.groups_of(w, "cp.async", lane).open.append(copy)
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
        _post_arrive(w, barrier, tma.groups_of(w, "cp.async", lane).so_far())

    return run


def _post_arrive(w: Warp, barrier: Mbarrier, copies: list[tma.AsyncCopy]) -> None:
    race = w.world.race
    clock: Clock | None = race.clock() if race else None

    def arrive() -> None:
        for copy in copies:
            copy.perform()
            if clock is not None and copy.clock is not None:
                clock.join(copy.clock)
        if clock is not None:
            barrier.point.release(clock, w.cta, 0)
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
            w.world.race.write_bytes(cta.shared, slice(offset, offset + len(values)), 1, actor)
        cta.shared.write(offset, values)
        barrier.finish(len(values), actor)

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
            w.world.race.write_bytes(cta.shared, slice(offset, offset + count), 1, w)
        cta.shared.write(offset, np.zeros(count, np.uint8))
        w.world.progress += 1

    return run
