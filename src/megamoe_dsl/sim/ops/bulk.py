"""Linear copies: cp.async.bulk, cp.reduce.async.bulk, cp.async.ca/.cg, st.async, st.bulk, and their async-groups.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Bulk copy", "cp.async", "st.async", "st.bulk". Size and
addresses of bulk copies are multiples of 16. cp.async and st.async work in the generic proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from .. import tma_engine as tma
from ..access_record import HAPPENED, mask_of
from ..chunks import CHUNK, Chunks, GlobalRows, shared_chunks
from ..clock import Actor, Clock
from ..memory import DTYPES, ELEMENTS, SMEM_RESERVED, Allocation, Bytes
from ..operands import Combination, combination
from . import ADDRESS, Binder, Cta, Kinds, Mask, Outcome, PtxInstruction, SimError, Warp, all_lanes, each_lane, plain
from .access import origin, shared_target
from .mbarrier import Mbarrier, mbarrier_at


def _piece(cta: Cta, offset: int, *, size: int, address: int) -> Chunks:
    """Where a linear copy of `size` bytes, from or to `address`, lies in shared memory."""
    for name, value in (("shared address", offset), ("other address", address), ("size", size)):
        if value % CHUNK:
            raise SimError(f"bulk copy: {name} {value:#x} must be a multiple of {CHUNK}")
    cta.shared.check(offset, offset + size)
    return shared_chunks(offset, size)


Place = Callable[[Cta, int], Chunks]
"""The chunks of a copy at an offset in the shared memory of a CTA, all of which it has."""


def multicast(w: Warp, ranks: int) -> list[Cta]:
    """The CTAs of a multicast mask."""
    ctas = w.cta.cluster.ctas
    if not ranks or ranks >> len(ctas):
        raise SimError(f"multicast mask {ranks:#x} in a cluster of {len(ctas)} CTAs")
    return [one for rank, one in enumerate(ctas) if ranks >> rank & 1]


def post_load(
    ins: PtxInstruction, w: Warp, lane: int, where: int, at: Place, read: Callable[[Cta, Actor], Bytes], count: int, barrier: int, mask: int
) -> None:
    """Posts a lane's load: `read` gives the bytes that go to the chunks of every target; its barrier then completes `count` bytes."""
    (cta, offset), (barrier_cta, barrier_offset) = shared_target(w, where), shared_target(w, barrier)
    pair, own, other = "cta_group::2" in ins.parts, cta.cluster_rank, barrier_cta.cluster_rank
    if several := "multicast::cluster" in ins.parts:
        targets = multicast(w, mask)
    elif own != other and not (pair and own >> 1 == other >> 1):
        raise SimError(f"load into {cta} signals an mbarrier of {barrier_cta}: only .cta_group::2 may, inside its pair")
    else:
        targets = [cta]
    for target in targets:
        signalled = target if several and not pair else w.cta.cluster.ctas[target.cluster_rank & ~1 | other & 1]
        chunks, finished, actor_for = at(target, offset), mbarrier_at(signalled, barrier_offset), tma.load_actor(w, lane)
        w.world.post(partial(finish_load, target, chunks, read, finished, count, actor_for), origin(w))


def finish_load(
    target: Cta, chunks: Chunks, read: Callable[[Cta, Actor], Bytes], barrier: Mbarrier, count: int, actor_for: Callable[[Mbarrier], Actor]
) -> None:
    """Writes the bytes of `read` to the chunks, if there are any, and completes `count` bytes at the barrier."""
    actor = actor_for(barrier)
    if chunks:
        tma.write_shared_chunks(target, chunks, read(target, actor), actor)
    barrier.finish(count, actor)


def post_store(w: Warp, lanes: list[int], where: int, at: Place, what: str, write: Callable[[Cta, Bytes, Actor], None]) -> None:
    """Posts one store for all these lanes, in two steps: its source in shared memory is read, then `write` gets the bytes."""
    cta, offset = shared_target(w, where)
    if cta is not w.cta:
        raise SimError(f"{what} from the shared memory of {cta}")
    chunks = at(cta, offset)
    world, label, clock = w.world, origin(w), w.order.snapshot(w.order.whole(1 << lanes[0]))
    source, destination = (world.race.engine(w, f"bulk store {side}", clock) for side in ("source", "destination"))
    copy = tma.AsyncCopy(clock, destination.agent)
    for lane in lanes:
        tma.groups_of(w, "bulk", lane).open.append(copy)

    def first() -> None:
        values = tma.read_shared_chunks(cta, chunks, what, source) if chunks else None
        copy.read_done = True
        world.post(lambda: second(values), label)

    def second(values: Bytes | None) -> None:
        if values is not None:
            write(cta, values, destination)
        copy.done = True

    world.post(first, label)


@each_lane("cp.async.bulk", reads=(ADDRESS, ADDRESS, np.uint32, ADDRESS, np.uint16))
def copy(ins: PtxInstruction, w: Warp, lane: int, where: int, start: int, count: int, barrier: int = 0, mask: int = 0) -> None:
    """[destination], [source], size, [mbarrier] [, cta mask] [, policy]: load (`.shared::* .global`), store (`.global .shared::cta`), whose
    third operand is the last, or copy between CTAs (`.shared::cluster .shared::cta`)."""
    to, source = [part for part in ins.parts if part == "global" or part.startswith("shared")]
    if to == "global":
        _store(ins, w, lane, where, start, count)
        return
    there, first = shared_target(w, start) if source != "global" else (w.cta, 0)

    def read(target: Cta, actor: Actor) -> Bytes:
        if source == "global":
            return tma.read_global_rows(target, GlobalRows(np.array([start]), count), actor)
        return tma.read_shared_chunks(there, shared_chunks(first, count), "bulk copy", actor)

    post_load(ins, w, lane, where, partial(_piece, size=count, address=start), read, count, barrier, mask)


@each_lane("cp.reduce.async.bulk", reads=(ADDRESS, ADDRESS, np.uint32))
def reduce(ins: PtxInstruction, w: Warp, lane: int, start: int, where: int, count: int) -> None:
    """Combine with global memory: cp.reduce.async.bulk.global.shared::cta.bulk_group.OP[.noftz].TYPE [destination], [source], size"""
    if "global" not in ins.parts:
        raise SimError(f"{ins.opcode}: only reductions into global memory are modeled")
    after = ins.parts[ins.parts.index("bulk_group") + 1 :]
    operation, element = [part for part in after if part not in ("noftz", "L2::cache_hint")][:2]
    _store(ins, w, lane, start, where, count, combination(operation, element))


def _store(ins: PtxInstruction, w: Warp, lane: int, start: int, where: int, count: int, reduction: Combination | None = None) -> None:
    if "cp_mask" in ins.parts:
        raise SimError(f"{ins.opcode}: .cp_mask is not modeled")

    def write(cta: Cta, values: Bytes, actor: Actor) -> None:
        tma.write_global_rows(cta, GlobalRows(np.array([start]), count), values.reshape(1, -1), reduction, actor)

    post_store(w, [lane], where, partial(_piece, size=count, address=start), "bulk store", write)


@plain("cp.async.bulk.commit_group", "cp.async.commit_group")
def commit(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Close the open group of every lane."""
    for lane in w.lanes(mask):
        tma.groups_of(w, "bulk" if "bulk" in ins.parts else "cp.async", lane).commit()
    w.world.progress += 1


@plain("cp.async.bulk.wait_group", "cp.async.wait_group", "cp.async.wait_all", straight=False)
def wait(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome | None:
    """Wait until at most N of the most recent groups are pending."""
    kind, read = "bulk" if "bulk" in ins.parts else "cp.async", "read" in ins.parts
    keep = int(ins.operands[0], 0) if ins.operands else 0
    by_lane = {lane: w.state[(kind, lane)] for lane in w.lanes(mask) if (kind, lane) in w.state}
    groups = by_lane.values()
    if ins.parts[-1] == "wait_all":
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


def _generic_actor(w: Warp, kind: str) -> Actor:
    """The engine of a warp's asynchronous operations of one kind, in the generic proxy."""
    return w.world.race.engine(w, kind, w.order.snapshot(), asynchronous=False, rows=HAPPENED)


def _copy_lanes(cta: Cta, pieces: list[tuple[int, int, int]], size: int, actor: Actor) -> None:
    """One cp.async instruction: per active lane a destination offset, a source address and a number of bytes to read."""
    world, race = cta.world, cta.world.race
    read: dict[tuple[Allocation, int], list[int]] = {}
    for offset, source, count in pieces:
        values = np.zeros(size, np.uint8)
        if count:
            values[:count] = world.memory.read(source, count)
            allocation, at = world.memory.find(source, count)
            read.setdefault((allocation, count), []).append(at)
        cta.shared.write(offset, values)
    for (allocation, count), places in read.items():
        if count == size and not allocation.base % count:
            race.read_bytes(allocation, np.array(places), count, actor)
        else:
            for at in places:
                race.read_bytes(allocation, slice(at, at + count), 1, actor)
    race.write_bytes(cta.shared, np.array([offset for offset, _, _ in pieces]), size, actor)
    world.progress += 1


def _copied(ins: PtxInstruction, b: Binder) -> Kinds:
    """Destination, source, size, and how many bytes to read, or a predicate that says to read none: what is not read is zero."""
    size, *extra = ins.operands[2 : 3 if "L2::cache_hint" in ins.parts and len(ins.operands) == 4 else 4]
    if int(size, 0) not in (4, 8, 16) or ("cg" in ins.parts and int(size, 0) != 16):
        raise SimError(f"cp.async of {size} bytes")
    return ADDRESS, ADDRESS, np.uint32, *(np.bool_ if b.kernel.registers.get(one) == "pred" else np.uint32 for one in extra)


@all_lanes("cp.async.ca", "cp.async.cg", reads=_copied)
def copy_async(ins: PtxInstruction, w: Warp, given: dict[int, tuple[int, ...]]) -> None:
    """cp.async.{ca,cg}.shared.global [destination], [source], size [, source size | ignore predicate] [, policy]"""
    pieces = []
    for where, source, size, *extra in given.values():
        cta, offset = shared_target(w, where)
        count = size if not extra else extra[0] if type(extra[0]) is int else 0 if extra[0] else size
        if cta is not w.cta or offset % size or source % size or count > size:
            place = f"from {source:#x} to {cta} smem+{offset - SMEM_RESERVED}"
            raise SimError(f"cp.async of {count}/{size} bytes {place}: misaligned, too long or not local")
        pieces.append((offset, source, count))
    apart = w.kernel.waits_for_copies  # each lane for its own
    for lanes, own in [([lane], [piece]) for lane, piece in zip(given, pieces, strict=True)] if apart else [(list(given), pieces)]:
        actor = _generic_actor(w, f"cp.async {lanes[0]}" if apart else "cp.async")
        copy = tma.AsyncCopy(actor.clock, work=partial(_copy_lanes, w.cta, own, size, actor))
        for lane in lanes:
            tma.groups_of(w, "cp.async", lane).open.append(copy)
        w.world.post(copy.perform, origin(w))


@each_lane("cp.async.mbarrier.arrive", reads=(ADDRESS,))
def arrive(ins: PtxInstruction, w: Warp, lane: int, where: int) -> None:
    """cp.async.mbarrier.arrive[.noinc] [address]: arrive when all earlier cp.async of the lane have completed."""
    barrier, copies = mbarrier_at(*shared_target(w, where)), tma.groups_of(w, "cp.async", lane).so_far()
    barrier.pending += "noinc" not in ins.parts
    clock = w.world.race.clock()

    def run() -> None:
        for copy in copies:
            copy.perform()
            clock.join(copy.clock)
        barrier.point.release(clock, w.cta, 0)
        barrier.arrive(1)

    w.world.post(run, origin(w))


def _stored(ins: PtxInstruction) -> type:
    return next(ELEMENTS[np.dtype(DTYPES[part]).itemsize] for part in reversed(ins.parts) if part in DTYPES)


@each_lane("st.async", reads=lambda ins, b: (ADDRESS, [_stored(ins)], ADDRESS))
def store_async(ins: PtxInstruction, w: Warp, lane: int, where: int, values: tuple[int, ...], barrier: int = -1) -> None:
    """st.async[.weak].shared::cluster.mbarrier::complete_tx::bytes[.vec].type [address], value, [mbarrier]; CUTLASS writes .type.vec"""
    if "mbarrier::complete_tx::bytes" not in ins.parts:
        raise SimError(f"{ins.opcode}: only the mbarrier form is modeled")
    (cta, offset), (barrier_cta, barrier_offset) = shared_target(w, where), shared_target(w, barrier)
    data = np.array(values, _stored(ins)).view(np.uint8)
    if barrier_cta is not cta or offset % len(data):
        place = f"{cta} smem+{offset - SMEM_RESERVED}"
        raise SimError(f"st.async to {place} with an mbarrier of {barrier_cta}: misaligned or not the same CTA")
    actor, mbarrier = _generic_actor(w, "st.async"), mbarrier_at(cta, barrier_offset)

    def store() -> None:
        cta.world.race.write_bytes(cta.shared, slice(offset, offset + len(data)), 1, actor)
        cta.shared.write(offset, data)
        mbarrier.finish(len(data), actor)

    w.world.post(store, origin(w))


@each_lane("st.bulk", reads=(ADDRESS, np.uint64))
def zero(ins: PtxInstruction, w: Warp, lane: int, where: int, count: int) -> None:
    """st.bulk[.weak].shared::cta [address], size, 0: zero-fill, a generic-proxy write."""
    cta, offset = shared_target(w, where)
    if offset % 8 or count % 8 or cta is not w.cta:
        raise SimError(f"st.bulk of {count} bytes at {cta} smem+{offset - SMEM_RESERVED}: multiples of 8 in the CTA's own memory")
    w.world.race.write_bytes(cta.shared, slice(offset, offset + count), 1, w)
    cta.shared.write(offset, np.zeros(count, np.uint8))
    w.world.progress += 1
