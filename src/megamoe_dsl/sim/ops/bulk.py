"""Linear bulk copies and async-groups: cp.async.bulk, cp.reduce.async.bulk, commit_group, wait_group.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Bulk copy". Size and addresses of bulk copies are
multiples of 16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from ..access_record import mask_of
from ..accessor import Actor
from ..async_groups import AsyncCopy, groups_of
from ..chunks import CHUNK, Chunks, GlobalRows
from ..clock import Clock
from ..mbarrier import Mbarrier, mbarrier_at
from ..memory import Bytes
from ..tma_engine import (
    Issue,
    Reduction,
    StoreActors,
    finish_load,
    read_global_rows,
    read_shared_chunks,
    write_global_rows,
    write_shared_chunks,
)
from . import Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, each_lane, register
from .common import origin, shared_target


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
    return _build_store(ins, b, Reduction(operation, element))


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
        issue = Issue.of(w, lane)
        for target in [cta] if ctas is None else [one for rank, one in enumerate(w.cta.cluster.ctas) if ctas >> rank & 1]:
            target.shared.check(offset, offset + count)
            fetch = None if from_global else shared_target(w, start)
            action = partial(_load, issue, start, fetch, target, offset, count, mbarrier_at(target, barrier_offset))
            w.world.post(action, origin(w))

    return run


def _load(issue: Issue, start: int, fetch: tuple[Cta, int] | None, target: Cta, offset: int, count: int, barrier: Mbarrier) -> None:
    actor = issue.load_actor(barrier)
    if count:
        if fetch is None:
            values = read_global_rows(target, GlobalRows(np.array([start]), count), actor)
        else:
            values = read_shared_chunks(fetch[0], _chunks(fetch[1], count), "bulk copy", actor)
        write_shared_chunks(target, _chunks(offset, count), values, actor)
    finish_load(barrier, count, actor)


def _build_store(ins: PtxInstruction, b: Binder, reduction: Reduction | None) -> Straight:
    """[destination], [source], size [, policy]"""
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
    actors = StoreActors.of(w, lanes[0])
    copy = AsyncCopy(actors.clock if actors else None, actors.destination.agent if actors else -1)
    for lane in lanes:
        groups_of(w, "bulk", lane).open.append(copy)

    def first() -> None:
        values = read(actors.source if actors else None)
        copy.read_done = True
        world.post(lambda: second(values), label)

    def second(values: Bytes) -> None:
        write(values, actors.destination if actors else None)
        copy.done = True

    world.post(first, label)


def _store(w: Warp, lane: int, start: int, offset: int, count: int, reduction: Reduction | None) -> None:
    cta, rows = w.cta, GlobalRows(np.array([start]), count)

    def read(actor: Actor | None) -> Bytes:
        return read_shared_chunks(cta, _chunks(offset, count), "bulk store", actor) if count else np.zeros(0, np.uint8)

    def write(values: Bytes, actor: Actor | None) -> None:
        if count:
            write_global_rows(cta, rows, values.reshape(1, -1), reduction, actor)

    post_store(w, [lane], read, write)


@register("cp.async.bulk.commit_group", "cp.async.commit_group")
def build_commit(ins: PtxInstruction, b: Binder) -> Straight:
    """Close the open group of every lane."""
    kind = "bulk" if "bulk" in ins.parts else "cp.async"

    def run(w: Warp, mask: Mask) -> None:
        for lane in w.lanes(mask):
            groups_of(w, kind, lane).commit()
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
