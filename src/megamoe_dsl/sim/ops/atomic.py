"""Atomics and reductions (PTX ISA: atom, red). Lanes of one instruction take effect in lane order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..formats import bf16_to_f32, f32_to_bf16
from ..lanes import Lanes
from ..memory import Allocation
from ..operands import UNSIGNED
from ..parser import TYPE_BYTES
from . import YIELD, Binder, Mask, Outcome, PtxInstruction, SimError, Warp, register, vector
from .access import resolve
from .common import scope, semantics, state_space
from .loadstore import flag_key

_SIGNED = {"s32": np.int32, "s64": np.int64}
Update = Callable[[Any, Any, Any], Any]


def _bf16_add(old: Any, x: Any) -> Any:
    return f32_to_bf16(bf16_to_f32(old.view(np.uint16)) + bf16_to_f32(x.view(np.uint16)))


def _update(operation: str, kind: str) -> Update:
    """(old, operand, second operand) -> new, on arrays of one unsigned element."""
    u = UNSIGNED[TYPE_BYTES[kind]]
    if kind in ("bf16x2", "bf16") and operation == "add":
        return lambda old, x, y: _bf16_add(old, x).view(u)
    view = {"f32": np.float32, "f64": np.float64, "f16x2": np.float16, "f16": np.float16, **_SIGNED}.get(kind, u)
    table: dict[str, Update] = {
        "add": lambda old, x, y: (old.view(view) + x.view(view)).view(u),
        "min": lambda old, x, y: np.minimum(old.view(view), x.view(view)).view(u),
        "max": lambda old, x, y: np.maximum(old.view(view), x.view(view)).view(u),
        "and": lambda old, x, y: old & x,
        "or": lambda old, x, y: old | x,
        "xor": lambda old, x, y: old ^ x,
        "exch": lambda old, x, y: x,
        "cas": lambda old, x, y: y if old[0] == x[0] else old,
        "inc": lambda old, x, y: np.where(old >= x, u(0), old + u(1)),
        "dec": lambda old, x, y: np.where((old == 0) | (old > x), x, old - u(1)),
    }
    if operation not in table:
        raise SimError(f"unknown atomic operation {operation}")
    return table[operation]


@register("atom", "red")
def atomic(ins: PtxInstruction, b: Binder) -> Any:
    """atom returns the old value and red does not; vectors take effect element by element.  `inc` and `dec` wrap at the operand."""
    if "async" in ins.parts:
        raise SimError("red.async is not supported")
    returns, kind = ins.parts[0] == "atom", ins.parts[-1]
    if kind not in TYPE_BYTES or TYPE_BYTES[kind] > 8:
        raise SimError(f"atomics on {kind} are not supported")
    operation = next((p for p in ins.parts if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")), "")
    space, semantic, level = state_space(ins.parts), semantics(ins.parts, "relaxed"), scope(ins.parts, "gpu")
    update, u, size = _update(operation, kind), UNSIGNED[TYPE_BYTES[kind]], TYPE_BYTES[kind]
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
        changed = False
        for lane in w.lanes(mask):
            a = int(where[lane])
            if (race := w.world.race) is not None:
                key = flag_key(w, space, a)
                if returns:
                    race.observe(key, w, semantic, level, w.order.whole(1 << lane))
            for k, source in enumerate(sources):
                extra = None if second is None else second[lane : lane + 1]
                before, after = _apply(w, lane, space, a + k * size, size, update, source[lane : lane + 1], extra)
                old[k][lane] = before
                changed |= bool(before != after)
            if race is not None:
                race.publish(key, w, semantic, level, False, w.order.whole(1 << lane))
        w.world.progress += changed
        for write, column in zip(writers, old, strict=True) if returns else ():
            write(w, column, mask)
        return None if changed or not returns else YIELD  # an exchange that changes nothing is a poll

    return run


def _apply(w: Warp, lane: int, space: str, address: int, size: int, update: Update, x: Any, y: Any) -> tuple[Any, Any]:
    for store, offsets, _, cta in resolve(w, space, np.array([address]), size):
        if isinstance(store, Allocation) and store.read_only:
            raise SimError(f"atomic on read-only buffer {store}+{int(offsets[0])}")
        if (race := w.world.race) is not None:
            shadow = race.shadow_of(store, cta)
            race.strong(shadow, shadow.index(offsets, size), w, writes=True, lane=lane)
        index = offsets // size
        if store.first_uninitialized(index, size) is not None:
            raise SimError(f"atomic on uninitialized memory at {address:#x}")
        row = store.rows(size, 1)
        before = row[index]
        after = update(before, x, y)
        row[index] = after
        return before[0], after[0]
    raise SimError("atomic without an address")
