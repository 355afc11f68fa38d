"""tcgen05 instructions that warps execute: allocation, fences, commit, ld, st and their waits.

Source: PTX ISA, "TensorCore 5th Generation Family Instructions". A load delivers its registers at `wait::ld` and holds poison before; the
access itself also happens at the wait, so an arrive before the wait does not cover it. A kernel that uses a result register before the
wait on the way that takes no branch, except to copy it (see `pending_copies`), is refused, unless `Assumptions(tensor_waits=True)`
has every load deliver at once. Stores take effect at `wait::st`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..chunks import IndexArray
from ..errors import SimError
from ..lanes import Lanes
from ..loads_in_flight import REGISTER
from ..memory import POISON, POISON_WORD
from ..report import describe_line
from ..segment import Live, Segment, lane_program
from ..sync import SCOPES
from ..tensor_unit import COLUMNS, PipeIssue, cta_group, fragment, granules, tensor_thread, tensor_unit
from . import ADDRESS, Binder, Handler, Inline, Mask, Outcome, PtxInstruction, Warp, build, each_lane, plain, register, vector, whole_warp
from .access import line_of, origin, shared_target
from .bulk import multicast
from .mbarrier import mbarrier_at

Copy = Callable[[Warp], Callable[[], None] | None]
"""Called before a load delivers: returns what repeats one `mov`, or None if its registers have been overwritten since."""


def copy_of(ins: PtxInstruction, b: Binder) -> Copy:
    """The copy that a `mov` makes; its registers are watched."""
    built = build(ins, b)
    assert isinstance(built, Inline)
    registers = {b.index[name] for name, _ in built.assignments if name != "_"}
    b.watched.update(registers)
    segment = Segment(b, Live(registers, registers))
    segment.add(ins, built)
    program = lane_program(segment, masked=False)

    def copy(w: Warp) -> Callable[[], None] | None:
        program(w, made := list(w.R))
        return partial(program, w, w.R) if all(w.R[i].tobytes() == made[i].tobytes() for i in registers) else None

    return copy


def pending_copies(ins: PtxInstruction, b: Binder, names: set[str]) -> tuple[list[Copy], list[str]]:
    """The copies between a load of `names` and its wait, and the first other use on that way, or in a kernel without waits."""
    code, names = b.kernel.code, set(names)
    at = next(i for i, other in enumerate(code) if other is ins)
    copies = []
    waits = any(other.opcode.startswith("tcgen05.wait::ld") for other in code)
    for other in code[at + 1 :]:
        leaves = other.parts[0] in ("bra", "ret", "exit") and other.predicate is None
        if (waits and leaves) or other.opcode.startswith("tcgen05.wait::ld"):
            break
        used = [any(name in names for name in REGISTER.findall(text)) for text in other.operands]
        if other.parts[0] == "mov" and other.predicate is None and used == [False, True]:
            copies.append(copy_of(other, b))
            names |= set(vector(other.operands[0]))
        elif other.predicate in names or any(used):
            use = f"{other.opcode} uses a register of the tcgen05.ld at PTX line {ins.line} before tcgen05.wait::ld"
            return copies, [f"PTX line {other.line}: {use}"]
    return copies, []


@whole_warp("tcgen05.alloc", reads=(ADDRESS, np.uint32))
def allocate(ins: PtxInstruction, w: Warp, destination: int, count: int) -> Outcome | None:
    """tcgen05.alloc.cta_group.sync.aligned [destination], columns: waits for room, and stores the address."""
    cta_group(w, ins.parts)
    if (start := tensor_unit(w.cta).allocate(count)) is None:
        return w.block(f"tcgen05.alloc of {count} columns: no room")
    cta, offset = shared_target(w, destination)
    w.world.race.write_bytes(cta.shared, slice(offset, offset + 4), 4, w)
    cta.shared.write(offset, np.array([start], np.uint32).view(np.uint8))
    w.world.progress += 1
    return None


@whole_warp("tcgen05.dealloc", reads=(np.uint32, np.uint32))
def deallocate(ins: PtxInstruction, w: Warp, address: int, count: int) -> None:
    """tcgen05.dealloc.cta_group.sync.aligned address, columns: nothing that uses them may be in flight."""
    unit = tensor_unit(w.cta)
    if unit.working:
        raise SimError(f"tcgen05.dealloc while {unit.working} operations of {w.cta} are in flight")
    if unit.pipe:  # they touch no tensor memory
        w.world.warnings[f"{line_of(w)}: tcgen05.dealloc before tcgen05.commit has arrived"] += 1
    unit.free(address, count)
    w.world.progress += 1


@plain("tcgen05.relinquish_alloc_permit")
def relinquish(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """No allocation may follow in this CTA."""
    tensor_unit(w.cta).may_allocate = False


@plain("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Between what the warp learns from, or tells, others and its tcgen05 operations (`tensor_unit`)."""
    thread = tensor_thread(w)
    thread.before_thread_sync() if "before" in ins.parts[1] else thread.after_thread_sync()


@each_lane("tcgen05.commit", reads=(ADDRESS, np.uint16))
def commit(ins: PtxInstruction, w: Warp, lane: int, where: int, mask: int = 0) -> None:
    """Arrive after earlier work: commit.cta_group.mbarrier::arrive::one[.shared::cluster][.multicast::cluster].b64 [mbarrier] [, mask]"""
    cta_group(w, ins.parts)
    unit, (cta, offset) = tensor_unit(w.cta), shared_target(w, where)
    targets = multicast(w, mask) if "multicast::cluster" in ins.parts else [cta]
    issue, barriers = PipeIssue(w), [mbarrier_at(target, offset) for target in targets]

    def arrive() -> None:
        clock = unit.committed(issue)
        for barrier in barriers:
            barrier.point.release(clock, barrier.cta, SCOPES["cluster"])
            barrier.arrive(1)

    w.world.post(arrive, origin(w), unit.pipe)


class WordPlaces(NamedTuple):
    """Registers in tensor memory: word offsets (registers, 32) from the first, lanes and columns spanned, whether columns hold 16 bits."""

    where: IndexArray
    lanes: int
    columns: int
    packed: bool


def _layout(ins: PtxInstruction, registers: str) -> WordPlaces:
    shape = next((part for part in ins.parts if re.fullmatch(r"\d+x\d+b(x2)?", part)), "")
    repeat = next((int(part[1:]) for part in ins.parts if re.fullmatch(r"x\d+", part)), 1)
    lane, column, columns = fragment(shape, repeat)
    packed = "pack::16b" in ins.parts or "unpack::16b" in ins.parts
    factor = 2 if packed else 1
    if (count := len(vector(registers))) != len(lane):
        raise SimError(f"{count} registers, the shape has {len(lane)}")
    return WordPlaces(lane * COLUMNS + column * factor, int(lane.max()) + 1, columns * factor, packed)


def _issue(
    w: Warp, address: int, layout: WordPlaces, name: str, access: Callable[[Warp, IndexArray, int], None], copies: list[Copy]
) -> None:
    """`access` gets the words and the line when the warp waits. Of the lane field, the bits of the warp are ignored when they are zero, and
    must match otherwise."""
    lane, column, quarter = address >> 16 & 0x7F, address & 0xFFFF, w.index % 4
    if lane // 32 not in (0, quarter) or lane % 32 not in ((0,) if layout.lanes > 16 else (0, 16)):
        raise SimError(f"TMEM lane {lane} from warp {w.index}: it reaches lanes {32 * quarter} to {32 * quarter + 31} only")
    where, line, loads = layout.where + ((32 * quarter + lane % 32) * COLUMNS + column), w.line, name == "tcgen05.ld"
    unit, thread, race = tensor_unit(w.cta), tensor_thread(w), w.world.race
    unit.check(column, layout.columns, name)

    def perform() -> None:
        unit.check(column, layout.columns, name)
        (race.read if loads else race.write)(unit.shadow, granules((quarter,), column, layout.columns), thread.actor(line))
        access(w, where, line)

    if w.world.assumptions.tensor_waits:
        perform()
    else:
        (thread.loads if loads else thread.stores).append((perform, copies))


@register("tcgen05.ld")
def build_load(ins: PtxInstruction, b: Binder) -> Handler:
    """Poison registers until the wait: tcgen05.ld.sync.aligned.SHAPE.NUM[.pack::16b].b32 registers, [address]"""
    if "red" in ins.parts:
        raise SimError("tcgen05.ld.red is not modeled")
    names, address, layout = vector(ins.operands[0]), b.address(ins.operands[1]), _layout(ins, ins.operands[0])
    registers = [(b.index[name], POISON[b.storage[b.index[name]]]) for name in names]
    copies, unwaited = pending_copies(ins, b, set(names))
    b.unwaited += unwaited

    def load(w: Warp, where: IndexArray, line: int) -> None:
        unit = tensor_unit(w.cta)
        words, valid = unit.words.take(where), unit.valid.take(where)
        if layout.packed:
            high, high_valid = unit.words.take(where + 1), unit.valid.take(where + 1)
            words, valid = (words & np.uint32(0xFFFF)) | (high << np.uint32(16)), valid & high_valid
        if b"\x00" in valid.tobytes():
            words = np.where(valid, words, POISON_WORD)
            w.world.warnings[f"{describe_line(line, w.world.kernels[w.kernel], '')}: tcgen05.ld of uninitialized TMEM"] += 1
        for (index, poison), row in zip(registers, words, strict=True):
            if w.R[index] is not poison:
                raise SimError(f"a register of the tcgen05.ld at PTX line {line} was written before tcgen05.wait::ld")
            w.R[index] = row.view(poison.dtype)

    def run(w: Warp, mask: Mask) -> None:
        at = int(address(w)[w.first(mask)])
        for index, poison in registers:
            w.R[index] = poison
        _issue(w, at, layout, "tcgen05.ld", load, copies)

    return run


@register("tcgen05.st")
def build_store(ins: PtxInstruction, b: Binder) -> Handler:
    """Store at the wait: tcgen05.st.sync.aligned.SHAPE.NUM[.unpack::16b].b32 [address], registers"""
    address, layout = b.address(ins.operands[0]), _layout(ins, ins.operands[1])
    readers = [b.read(name, np.uint32) for name in vector(ins.operands[1])]

    def store(rows: list[Lanes], w: Warp, places: IndexArray, line: int) -> None:
        unit = tensor_unit(w.cta)
        words, valid = unit.words.reshape(-1), unit.valid.reshape(-1)
        for row, where in zip(rows, places, strict=True):
            words[where], valid[where] = row & np.uint32(0xFFFF) if layout.packed else row, True
            if layout.packed:
                words[where + 1], valid[where + 1] = row >> np.uint32(16), True

    def run(w: Warp, mask: Mask) -> None:
        rows = [read(w) for read in readers]
        _issue(w, int(address(w)[w.first(mask)]), layout, "tcgen05.st", partial(store, rows), [])

    return run


@plain("tcgen05.wait::ld", "tcgen05.wait::st", straight=False)
def wait(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Perform the loads, or the stores, that the warp has issued."""
    thread = tensor_thread(w)
    accesses = thread.loads if ins.parts[1] == "wait::ld" else thread.stores
    again = [made for _, copies in accesses for copy in copies if (made := copy(w)) is not None]
    for perform, _ in accesses:
        perform()
    for made in again:
        made()
    accesses.clear()
