"""Loads, stores and atomics (PTX ISA: ld, st, atom, red).

Cache hints (`.L1::`, `.L2::`, `.nc`, `.ca`, ...) do not matter here and are ignored. Strong accesses (volatile, relaxed, acquire, release)
synchronize through the race detector; a strong load that returns what it returned last time yields, for it is a spin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..access_record import mask_of
from ..lanes import Lanes, stacked
from ..lanes import deliver as as_registers
from ..loads_in_flight import is_weak_load
from ..memory import DTYPES, ELEMENTS, SHARED_BASE
from ..operands import COMBINED, combination
from ..parser import TYPE_BYTES
from . import YIELD, Binder, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, register, vector
from .access import by_value, find, gather, scatter, scope, semantics, shared_target, state_space


def _element(ins: PtxInstruction) -> tuple[str, int]:
    kind = ins.parts[-1]
    if kind not in TYPE_BYTES:
        raise SimError(f"no element type in {ins.opcode}")
    return kind, TYPE_BYTES[kind]


def flag_key(w: Warp, space: str, address: int) -> Any:
    """Identifies a flag for the race detector: shared flags by CTA and offset, global ones by address."""
    if space == "shared" or address >= SHARED_BASE:
        cta, offset = shared_target(w, address)
        return (cta.uid, offset)
    return address


@register("ld")
def load(ins: PtxInstruction, b: Binder) -> Any:
    """ld of one element or a vector; narrow signed types are sign-extended."""
    kind, size = _element(ins)
    space, semantic = state_space(ins.parts), semantics(ins.parts, "weak")
    strong = semantic != "weak"
    address = b.address(ins.operands[1])
    targets = vector(ins.operands[0])
    n, kept = len(targets), [k for k, target in enumerate(targets) if target != "_"]
    registers = tuple(b.index[targets[k]] for k in kept)
    sizes = {np.dtype(b.storage[i]).itemsize for i in registers}
    if len(sizes) > 1:
        raise SimError("registers of several sizes")
    signed = DTYPES[kind] if kind.startswith("s") else None
    wide, level, line = ELEMENTS[max(sizes, default=size)], scope(ins.parts, "gpu"), ins.line

    def run(w: Warp, mask: Mask) -> Outcome | None:
        where = address(w)
        if strong and w.world.race:
            for (a,), lanes in by_value(w.lanes(mask), where):
                w.world.race.observe(flag_key(w, space, a), w, semantic, level, w.order.whole(mask_of(lanes)))
        values = gather(w, space, where, size, n, mask, strong)
        deliver(w, mask, values)
        if strong:
            seen = (line, values.tobytes())
            if seen == w.poll:
                return YIELD
            w.poll = seen
        return None

    def deliver(w: Warp, mask: Mask, values: Lanes) -> None:
        if len(kept) < n:
            values = np.ascontiguousarray(values.reshape(-1, n)[:, kept])
        if size not in sizes:
            values = (values if signed is None else values.view(signed)).astype(wide)
        as_registers(w.R, registers, values, mask)

    if b.late is None or not is_weak_load(ins):
        return run if strong else Straight(run)  # type: ignore[arg-type]
    defer = b.late.defer(ins, lambda w, mask, where: deliver(w, mask, gather(w, space, where, size, n, mask, seen=True)))

    def issue(w: Warp, mask: Mask) -> None:
        where = address(w)
        gather(w, space, where, size, n, mask)  # what is wrong with it shows here
        defer(w, mask, where)

    return Straight(issue)


@register("st")
def store(ins: PtxInstruction, b: Binder) -> Any:
    """st of one element or a vector."""
    _, size = _element(ins)
    space, semantic = state_space(ins.parts), semantics(ins.parts, "weak")
    strong, level = semantic != "weak", scope(ins.parts, "gpu")
    address = b.address(ins.operands[0])
    readers = [b.read(v, ELEMENTS[size]) for v in vector(ins.operands[1])]
    n = len(readers)

    def run(w: Warp, mask: Mask) -> None:
        where = address(w)
        values = readers[0](w) if n == 1 and mask is None else stacked([r(w) for r in readers], mask)
        scatter(w, space, where, size, n, values, mask, strong)
        if strong and w.world.race:
            for (a,), lanes in by_value(w.lanes(mask), where):
                w.world.race.publish(flag_key(w, space, a), w, semantic, level, True, w.order.whole(mask_of(lanes)))

    return Straight(run)


Update = Callable[[Any, Any, Any], Any]  # (old, operand, second operand) -> new, on arrays of one unsigned element.
_UPDATES: dict[str, Update] = {
    "exch": lambda old, x, y: x,
    "cas": lambda old, x, y: y if old[0] == x[0] else old,
    "inc": lambda old, x, y: np.where(old >= x, 0, old + 1),
    "dec": lambda old, x, y: np.where((old == 0) | (old > x), x, old - 1),
}


@register("atom", "red")
def atomic(ins: PtxInstruction, b: Binder) -> Any:
    """atom returns the old value and red does not; vectors take effect element by element.  `inc` and `dec` wrap at the operand."""
    if "async" in ins.parts:
        raise SimError("it is not modeled")
    returns, kind = ins.parts[0] == "atom", ins.parts[-1]
    if kind not in TYPE_BYTES or TYPE_BYTES[kind] > 8:
        raise SimError(f"atomics on {kind} are not supported")
    operation = next((p for p in ins.parts if p in COMBINED or p in _UPDATES), "")
    space, semantic, level = state_space(ins.parts), semantics(ins.parts, "relaxed"), scope(ins.parts, "gpu")
    u, size = ELEMENTS[TYPE_BYTES[kind]], TYPE_BYTES[kind]
    combine = None if operation in _UPDATES else combination(operation, kind)
    update: Update = _UPDATES[operation] if combine is None else lambda old, x, y: combine(old, x)
    operands = ins.operands[1:] if returns else ins.operands
    destinations = vector(ins.operands[0]) if returns else []
    writers = [b.write(d) for d in destinations]
    address = b.address(operands[0])
    values = [b.read(o, u) for o in vector(operands[1])]
    third = b.read(operands[2], u) if operation == "cas" else None

    def run(w: Warp, mask: Mask) -> Outcome | None:
        where, sources = address(w), [v(w) for v in values]
        second = third(w) if third else None
        old: list[Lanes] = [np.zeros(32, u) for _ in sources]
        changed, race = False, w.world.race
        for lane in w.lanes(mask):
            a = int(where[lane])
            key = flag_key(w, space, a)
            if returns:
                race.observe(key, w, semantic, level, w.order.whole(1 << lane))
            for k, source in enumerate(sources):
                extra = None if second is None else second[lane : lane + 1]
                before, after = _apply(w, lane, space, a + k * size, size, update, source[lane : lane + 1], extra)
                old[k][lane] = before
                changed |= bool(before != after)
            race.publish(key, w, semantic, level, False, w.order.whole(1 << lane))
        w.world.progress += changed
        for write, column in zip(writers, old, strict=True) if returns else ():
            write(w, column, mask)
        return None if changed or not returns else YIELD  # an exchange that changes nothing is a poll

    return run


def _apply(w: Warp, lane: int, space: str, address: int, size: int, update: Update, x: Any, y: Any) -> tuple[Any, Any]:
    store, offset = find(w, space, address, size)
    if store.read_only:
        raise SimError(f"atomic on read-only buffer {store}+{offset}")
    w.world.race.strong_bytes(store, np.array([offset]), size, w, writes=True, lane=lane)
    index = np.array([offset // size])
    if store.first_uninitialized(index, size) is not None:
        raise SimError(f"atomic on uninitialized memory at {address:#x}")
    row = store.rows(size, 1)
    before = row[index]
    row[index] = after = update(before, x, y)
    return before[0], after[0]
