"""Operands: how an instruction family reads and writes registers, immediates, special registers and addresses.

Registers hold 32 lanes as one numpy array and are immutable: writing replaces the array in the warp's list, so a reader may keep one.
Each register is stored in the dtype of its declaration (untyped ones unsigned); readers see it in the dtype they ask for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cta import Warp
from .errors import SimError
from .formats import bf16_to_f32, f32_to_bf16
from .lanes import LANE, Lanes, Mask, addresses
from .late_loads import LateLoads
from .memory import DTYPES, ELEMENTS, PARAM_BASE
from .parser import ParsedKernel, PtxInstruction
from .values import AS_TYPE, VIEW, Value

Combination = Callable[[Any, Any], Any]  # Old and new elements to what takes the place of the old.

_BELOW = (np.uint64(1) << LANE.astype(np.uint64)).astype(np.uint32) - np.uint32(1)  # for every lane the mask of those below it
_OWN = np.uint32(1) << LANE
_CONSTANT = {
    "%laneid": LANE, "%lanemask_eq": _OWN, "%lanemask_lt": _BELOW, "%lanemask_le": _BELOW | _OWN, "%lanemask_gt": ~(_BELOW | _OWN),
    "%lanemask_ge": ~_BELOW,
}  # fmt: skip
_OF_WARP: dict[str, Callable[[Warp, int], Any]] = {
    "%tid": lambda w, axis: w.thread_index[axis], "%warpid": lambda w, _: w.index, "%nwarpid": lambda w, _: len(w.cta.warps),
    "%ntid": lambda w, axis: w.cta.launch.block[axis], "%ctaid": lambda w, axis: w.cta.ctaid[axis],
    "%nctaid": lambda w, axis: w.cta.launch.grid[axis], "%clusterid": lambda w, axis: w.cta.ctaid[axis] // w.cta.launch.cluster[axis],
    "%nclusterid": lambda w, axis: w.cta.launch.grid[axis] // w.cta.launch.cluster[axis],
    "%cluster_ctaid": lambda w, axis: w.cta.ctaid[axis] % w.cta.launch.cluster[axis],
    "%cluster_nctaid": lambda w, axis: w.cta.launch.cluster[axis], "%cluster_ctarank": lambda w, _: w.cta.cluster_rank,
    "%cluster_nctarank": lambda w, _: len(w.cta.cluster.ctas), "%is_explicit_cluster": lambda w, _: 1, "%smid": lambda w, _: w.cta.sm,
    "%nsmid": lambda w, _: w.cta.launch.ctas, "%gridid": lambda w, _: 0, "%dynamic_smem_size": lambda w, _: w.cta.launch.dynamic_smem,
    "%total_smem_size": lambda w, _: w.cta.shared.limit,
    **dict.fromkeys(("%clock", "%clock64", "%globaltimer", "%globaltimer_lo"), lambda w, _: w.world.clock()),
    **dict.fromkeys(("%clock_hi", "%globaltimer_hi"), lambda w, _: w.world.clock() >> 32),
}  # fmt: skip


def special_register(text: str, dtype: type) -> NDArray[Any] | Callable[[Warp], NDArray[Any]]:
    """A constant array, or a function of the warp, for a special register such as `%tid.x`."""
    name, _, suffix = text.partition(".")
    if name in _CONSTANT:
        return _CONSTANT[name].astype(dtype)
    if name not in _OF_WARP:
        raise SimError(f"unknown special register {name}")
    value, axis = _OF_WARP[name], "xyz".index(suffix) if suffix else 0
    return lambda w: np.full(32, value(w, axis)).astype(dtype)


Reader = Callable[[Warp], Lanes]


def reader(value: Value) -> Reader:
    """A function that evaluates one value outside a segment."""
    source, dtype = value.source, value.dtype
    if value.operands:
        operands = [reader(one) for one in value.operands]
        if source is VIEW or source is AS_TYPE:
            (operand,) = operands
            return lambda w: source(operand(w), dtype)
        return lambda w: source(*(operand(w) for operand in operands))
    if isinstance(source, int):
        return lambda w: w.R[source]
    return source if callable(source) else lambda w: source


Writer = Callable[[Warp, Lanes, Mask], None]

COMBINED: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip

_ADDRESS = re.compile(r"([%\w$@]+)\s*(?:\+\s*(-?\w+))?")


def combination(operation: str, element: str) -> Combination:
    """`old op new` such as `add` of `bf16`, on words or on bytes.  Raises SimError for an operation or type that is not modeled."""
    single = element.removesuffix("x2")
    if operation not in COMBINED or single not in DTYPES:
        raise SimError(f"{operation!r} of {element} with memory is not modeled ({', '.join(COMBINED)} are)")
    combine, dtype = COMBINED[operation], DTYPES[single]
    if single == "bf16":
        return lambda old, new: f32_to_bf16(combine(bf16_to_f32(old.view(dtype)), bf16_to_f32(new.view(dtype)))).view(old.dtype)
    return lambda old, new: combine(old.view(dtype), new.view(dtype)).view(old.dtype)


def vector(operand: str) -> list[str]:
    """`{%a, %b}` to its elements; a plain operand is a vector of one."""
    return [part.strip() for part in operand[1:-1].split(",")] if operand.startswith("{") else [operand]


def immediate(text: str, dtype: type) -> Any:
    """A PTX literal as a numpy scalar of `dtype` (PTX ISA, "Constants"): integers wrap, 0f/0d literals are bit patterns."""
    if pattern := re.fullmatch(r"0(?:f([0-9a-f]{8})|d([0-9a-f]{16}))", text, re.I):
        kind, floating = (np.uint32, np.float32) if pattern[1] else (np.uint64, np.float64)
        bits: Any = kind(int(text[2:], 16))
        return bits if dtype == kind else dtype(bits.view(floating))
    try:
        value = int(text.rstrip("U"), 0)
    except ValueError:
        raise SimError(f"unknown operand {text!r}") from None
    if dtype == np.bool_:
        return np.bool_(value != 0)
    if np.issubdtype(dtype, np.floating):
        return dtype(value)
    size = np.dtype(dtype).itemsize
    return np.array([value & ((1 << 8 * size) - 1)], ELEMENTS[size]).view(dtype)[0]


class Binder:
    """Turns operand text into readers, writers and values for one kernel."""

    def __init__(self, kernel: ParsedKernel) -> None:
        self.kernel = kernel
        self.index = {name: i for i, name in enumerate(kernel.registers)}
        self.storage: list[type] = [np.uint16 if kind == "f16" else DTYPES[kind] for kind in kernel.registers.values()]
        self.watched: set[int] = set()  # registers that a handler looks at besides its operands
        self.late: LateLoads | None = None
        self.unwaited: list[str] = []  # uses of asynchronous results that no wait precedes
        self._leaves: dict[tuple[str, type], Value] = {}

    def value(self, operand: str, dtype: type) -> Value:
        """The operand's 32 lanes as `dtype`."""
        if operand in self.index:
            i = self.index[operand]
            return Value(i, self.storage[i]).to(dtype)
        if operand.startswith("!"):
            return ~self.value(operand[1:], dtype)  # type: ignore[no-any-return]
        if (key := (operand, dtype)) not in self._leaves:
            self._leaves[key] = Value(self._leaf(operand, dtype), dtype)
        return self._leaves[key]

    def _leaf(self, operand: str, dtype: type) -> Any:
        kernel = self.kernel
        if operand.startswith("%"):
            return special_register(operand, dtype)
        if operand in kernel.shared:
            offset = kernel.shared[operand]
            return lambda w: np.full(32, w.cta.shared_base + offset, dtype)
        for parameter in kernel.parameters:
            if parameter.name == operand:
                return np.full(32, PARAM_BASE + parameter.offset, dtype)
        if operand in kernel.local:
            return np.full(32, kernel.local[operand], dtype)
        if operand in kernel.symbols:
            return np.zeros(32, dtype)  # module-scope strings and tables have no address here; reading one is out of bounds
        return np.full(32, immediate(operand, dtype), dtype)

    def read(self, operand: str, dtype: type) -> Reader:
        """A function warp -> 32 lanes of `dtype`. Do not modify the array it returns."""
        return reader(self.value(operand, dtype))

    def write(self, operand: str) -> Writer:
        """A function (warp, values, mask) that writes the lanes in `mask` (None: all 32). `_` discards. `values` must not be reused."""
        if operand == "_":
            return lambda w, values, mask: None
        i = self.index[operand]
        dtype = np.dtype(self.storage[i])

        def store(w: Warp, values: Lanes, mask: Mask) -> None:
            if values.dtype != dtype:
                if values.dtype.itemsize == dtype.itemsize and dtype != np.bool_ and values.dtype != np.bool_:
                    values = np.ascontiguousarray(values).view(dtype)
                else:
                    values = values.astype(dtype)
            w.R[i] = values if mask is None else np.where(mask, values, w.R[i])

        return store

    def address(self, operand: str) -> Reader:
        """`[%r+imm]`, `[symbol+imm]` or `[imm]` to a function warp -> int64 addresses."""
        text = operand[1:-1] if operand.startswith("[") else operand
        if not (match := _ADDRESS.fullmatch(text.strip())):
            raise SimError(f"cannot parse address {operand}")
        base, offset = match.group(1), int(match.group(2), 0) if match.group(2) else 0
        if base in self.index:
            i, have = self.index[base], self.storage[self.index[base]]
            if np.dtype(have).itemsize == 8 or have == np.uint32:
                return lambda w: addresses(w.R[i], offset)
            read = self.read(base, np.uint64)
            return lambda w: addresses(read(w), offset)
        leaf = self._leaf(base, np.int64)
        if callable(leaf):
            return lambda w: leaf(w) + offset
        constant = leaf + offset
        return lambda w: constant

    def dtype(self, ins: PtxInstruction) -> type:
        if ins.parts[-1] not in DTYPES:
            raise SimError(f"no operand type in {ins.opcode}")
        return DTYPES[ins.parts[-1]]
