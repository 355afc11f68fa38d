"""Integer, logic, bit and data-movement arithmetic (PTX ISA, "Integer Arithmetic", "Logic and Shift", "Comparison and Selection", mov,
prmt).

Where the sign does not matter, operands are unsigned, as registers are stored. numpy shifts by the word size or more as PTX does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from ..operands import DTYPES, UNSIGNED, immediate
from ..parser import TYPE_BYTES
from . import Binder, Inline, PtxInstruction, SimError, register, vector
from .floating import build_float, is_float

_TEMPLATES = {
    "add": "{} + {}", "sub": "{} - {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "shl": "{} << {}", "shr": "{} >> {}",
    "not": "~{}", "neg": "-{}", "abs": "abs({})", "selp": "where({2}, {0}, {1})",
}  # fmt: skip
_COMPARE = {
    "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}",
    "lo": "{} < {}", "ls": "{} <= {}", "hi": "{} > {}", "hs": "{} >= {}",
}  # fmt: skip
_COMPARE_FLOAT = {
    **_COMPARE, "ne": "({0} < {1}) | ({0} > {1})", "equ": "~(({0} < {1}) | ({0} > {1}))", "neu": "{} != {}", "ltu": "~({} >= {})",
    "leu": "~({} > {})", "gtu": "~({} <= {})", "geu": "~({} < {})", "num": "({0} == {0}) & ({1} == {1})",
    "nan": "({0} != {0}) | ({1} != {1})",
}  # fmt: skip
_COMBINE = {"and": "&", "or": "|", "xor": "^"}


def unsigned(dtype: type) -> type:
    return dtype if dtype == np.bool_ else UNSIGNED[np.dtype(dtype).itemsize]


@register(*_TEMPLATES)
def elementwise(ins: PtxInstruction, b: Binder) -> Inline:
    """Sums, bitwise logic, shifts (shr brings in zeros or, for signed types, the sign), not, neg and abs, and selp. Results wrap."""
    base, (dest, *sources) = ins.parts[0], ins.operands
    if is_float(ins) and base != "selp":
        return build_float(ins, b)
    if "cc" in ins.parts or "sat" in ins.parts:
        raise SimError("carry and saturating integer arithmetic are not supported")
    t = b.dtype(ins) if base in ("shr", "abs") else unsigned(b.dtype(ins))
    texts = [b.expression(o, t) for o in sources[:2]] + [b.expression(o, np.bool_) for o in sources[2:]]
    if base in ("shl", "shr") and sources[1] in b.index:  # the amount is .u32
        texts[1] = b.cast(b.expression(sources[1], np.uint32), np.uint32, t)
    return Inline([(dest, _TEMPLATES[base].format(*texts), t)])


_WIDE: dict[type, type] = {np.int16: np.int32, np.uint16: np.uint32, np.int32: np.int64, np.uint32: np.uint64}


def _high64(x: Any, y: Any, t: type) -> Any:
    products = [int(p) * int(q) >> 64 & 0xFFFFFFFFFFFFFFFF for p, q in zip(x, y, strict=True)]
    return np.array(products, np.uint64).view(t)


def _widened(b: Binder, operand: str, t: type) -> str:
    """An operand of type t in twice its bits; a literal at once, and as t reads it: -1 as u32 is 0xffffffff."""
    if operand[0] in "-0123456789":
        return b.expression(str(immediate(operand, t)), _WIDE[t])
    return f"{b.expression(operand, t)}.astype({b.dtype_name(_WIDE[t])})"


def _product(ins: PtxInstruction, b: Binder) -> tuple[str, type]:
    t = b.dtype(ins)
    x, y = ins.operands[1:3]
    if "wide" in ins.parts:
        return f"{_widened(b, x, t)} * {_widened(b, y, t)}", _WIDE[t]
    if "hi" in ins.parts:
        if t in (np.uint64, np.int64):
            return f"{b.name(_high64)}({b.expression(x, t)}, {b.expression(y, t)}, {b.dtype_name(t)})", t
        double, bits = b.dtype_name(_WIDE[t]), 8 * np.dtype(t).itemsize
        shift = b.expression(str(bits), _WIDE[t])
        return f"(({b.expression(x, t)}.astype({double}) * {b.expression(y, t)}.astype({double})) >> {shift}).astype({b.dtype_name(t)})", t
    t = unsigned(t)
    return f"{b.expression(x, t)} * {b.expression(y, t)}", t


@register("mul", "mad")
def multiply(ins: PtxInstruction, b: Binder) -> Inline:
    """mul and mad: the low half, the upper half (`.hi`) or all (`.wide`) of the product, plus c for mad."""
    if is_float(ins):
        return build_float(ins, b)
    text, t = _product(ins, b)
    if ins.parts[0] == "mad":
        text = f"{text} + {b.expression(ins.operands[3], t)}"
    return Inline([(ins.operands[0], text, t)])


@register("setp")
def set_predicate(ins: PtxInstruction, b: Binder) -> Inline:
    """setp: a comparison, combined with a predicate if one is given; `p|q` also writes the opposite, combined likewise."""
    t = b.dtype(ins)
    half = ins.parts[-1] == "bf16"
    floating = np.issubdtype(t, np.floating) or half
    operator = ins.parts[1]
    if operator in ("eq", "ne", "lo", "ls", "hi", "hs") and not floating:
        t = unsigned(t)
    sources = [b.expression(o, t) for o in ins.operands[1:3]]
    if half:
        name, shift = b.dtype_name(np.uint32), b.expression("16", np.uint32)
        sources = [f"({s}.astype({name}) << {shift}).view({b.dtype_name(np.float32)})" for s in sources]
    table = _COMPARE_FLOAT if floating else _COMPARE
    if operator not in table:
        raise SimError(f"unknown comparison {operator}")
    text = f"({table[operator].format(*sources)})"
    combine = next((p for p in ins.parts[2:-1] if p in _COMBINE), None)
    other = f" {_COMBINE[combine]} {b.expression(ins.operands[3], np.bool_)}" if combine else ""
    true, _, false = ins.operands[0].partition("|")
    out = [(true, text + other, np.bool_)]
    if false:
        out.append((false, f"~{text}{other}", np.bool_))
    return Inline(out)  # type: ignore[arg-type]


@register("set")
def set_value(ins: PtxInstruction, b: Binder) -> Inline:
    """set: a comparison as a 32-bit value, 1.0 (`.f32`) or all ones where it holds, else 0."""
    t, result = b.dtype(ins), ins.parts[-2]
    sources = [b.expression(o, t) for o in ins.operands[1:3]]
    table = _COMPARE_FLOAT if np.issubdtype(t, np.floating) else _COMPARE
    yes = b.expression("0f3F800000" if result == "f32" else "-1", np.uint32)
    return Inline([(ins.operands[0], f"where({table[ins.parts[1]].format(*sources)}, {yes}, {b.expression('0', np.uint32)})", np.uint32)])


def _pack(*parts: Any) -> Any:
    packed = np.ascontiguousarray(np.stack(parts, axis=1))
    return packed.view(UNSIGNED[packed.shape[1] * packed.itemsize])[:, 0]


def _unpack(values: Any, part: type, index: int) -> Any:
    return np.ascontiguousarray(np.ascontiguousarray(values).view(part).reshape(len(values), -1)[:, index])


@register("mov")
def move(ins: PtxInstruction, b: Binder) -> Inline:
    """mov: one value, or a vector packed into a wider register or unpacked from one, lowest element first."""
    dest, source = ins.operands
    if ins.parts[-1] == "pred":
        return Inline([(dest, b.expression(source, np.bool_), np.bool_)])
    total = TYPE_BYTES[ins.parts[-1]]
    if source.startswith("{"):
        parts = vector(source)
        small, whole = UNSIGNED[total // len(parts)], UNSIGNED[total]
        texts = [b.expression(p, small) for p in parts]
        if len(parts) == 2 and total <= 8:
            name, shift = b.dtype_name(whole), b.expression(str(4 * total), whole)
            low, high = (f"{t}.astype({name})" for t in texts)
            return Inline([(dest, f"{low} | ({high} << {shift})", whole)])
        return Inline([(dest, f"{b.name(_pack)}({', '.join(texts)})", whole)])
    if dest.startswith("{"):
        parts = vector(dest)
        bits = 8 * total // len(parts)
        small, whole = UNSIGNED[total // len(parts)], UNSIGNED[total]
        if total > 8:
            name, text = b.name(_unpack), b.expression(source, whole)
            return Inline([(d, f"{name}({text}, {b.dtype_name(small)}, {k})", small) for k, d in enumerate(parts)])
        text, name = b.expression(source, whole), b.dtype_name(small)
        shifts = [f"({text} >> {b.expression(str(bits * k), whole)})" if k else text for k in range(len(parts))]
        return Inline([(d, f"{s}.astype({name})", small) for d, s in zip(parts, shifts, strict=True)])
    t = b.dtype(ins)
    if source in b.index and np.dtype(b.storage[b.index[source]]).itemsize == total:
        t = b.storage[b.index[source]]
    return Inline([(dest, b.expression(source, t), t)])


@register("lop3")
def logic3(ins: PtxInstruction, b: Binder) -> Inline:
    """lop3: any bitwise function of three .b32, given by its table of 8 bits."""
    x, y, z = (b.expression(o, np.uint32) for o in ins.operands[1:4])
    table = int(ins.operands[4], 0)
    known = {0xC0: f"{x} & {y}", 0xFC: f"{x} | {y}", 0x3C: f"{x} ^ {y}", 0x96: f"{x} ^ {y} ^ {z}", 0x80: f"{x} & {y} & {z}",
             0xFE: f"{x} | {y} | {z}", 0xF8: f"{x} | ({y} & {z})", 0xE0: f"{x} & ({y} | {z})", 0xEA: f"({x} & {y}) | {z}",
             0xCA: f"({x} & {y}) | (~{x} & {z})"}  # fmt: skip
    if (text := known.get(table)) is None:
        terms = [f"({x if k & 4 else '~' + x} & {y if k & 2 else '~' + y} & {z if k & 1 else '~' + z})" for k in range(8) if table >> k & 1]
        text = " | ".join(terms) or b.expression("0", np.uint32)
    return Inline([(ins.operands[0].partition("|")[0], text, np.uint32)])


# ---- instructions that are a function of their sources

Function = tuple[Callable[..., Any], list[type], type]  # What computes it, the types of the sources, and the type of the result.


def _quotient(x: Any, y: Any) -> Any:
    """Truncated division; by zero gives all ones, which is what the hardware does today (PTX leaves it undefined)."""
    zero = y == 0
    safe = np.where(zero, y.dtype.type(1), y)
    q = x // safe
    if np.issubdtype(x.dtype, np.signedinteger):
        q = q + ((q * safe != x) & ((x < 0) != (safe < 0)))
    return np.where(zero, ~np.zeros_like(x), q)


def _permute(x: Any, y: Any, selector: Any) -> Any:
    source = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
    nibbles = selector.astype(np.uint64)[:, None] >> np.arange(0, 16, 4, dtype=np.uint64)
    picked = (source[:, None] >> ((nibbles & np.uint64(7)) << np.uint64(3))).astype(np.uint8)
    if (signs := nibbles & np.uint64(8)).any():
        picked = np.where(signs, np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0)), picked)
    return picked.view(np.uint32)[:, 0]


def _lengths(x: Any) -> Any:
    return np.array([v.bit_length() for v in x.tolist()], np.uint32)


def _find_leading(x: Any, shift: bool) -> Any:
    if np.issubdtype(x.dtype, np.signedinteger):
        x = np.where(x < 0, ~x, x)
    length = _lengths(x)
    return np.where(length == 0, np.uint32(0xFFFFFFFF), np.uint32(8 * x.itemsize) - length if shift else length - np.uint32(1))


def _reverse(x: Any) -> Any:
    bits = np.unpackbits(x.view(np.uint8).reshape(len(x), -1), axis=1, bitorder="little")
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(x.dtype)[:, 0]


def _nth_set(masks: Any, bases: Any, offsets: Any) -> Any:
    out = np.full(len(masks), 0xFFFFFFFF, np.uint32)
    for lane, (mask, base, n) in enumerate(zip(masks.tolist(), bases.tolist(), offsets.tolist(), strict=True)):
        positions = [base & 31] if n == 0 else range(base, 32) if n > 0 else range(base, -1, -1)
        if found := [j for j in positions if mask >> j & 1][max(abs(n) - 1, 0) :]:
            out[lane] = base if n == 0 else found[0]
    return out


def _extract(value: Any, start: Any, length: Any) -> Any:
    kind, bits = value.dtype, 8 * value.itemsize
    room = (bits - np.minimum(length & 0xFF, bits)).astype(kind)
    return value >> (start & 0xFF).astype(kind) << room >> room


def _insert(field: Any, into: Any, start: Any, length: Any) -> Any:
    kind = field.dtype
    at = (start & 0xFF).astype(kind)
    mask = (kind.type(1) << (length & 0xFF).astype(kind)) - kind.type(1) << at
    return into & ~mask | field << at & mask


def _bit_mask(start: Any, width: Any, clamp: bool) -> Any:
    s, n = start.astype(np.uint64), width.astype(np.uint64)
    s, n = (np.minimum(s, 32), np.minimum(n, 32)) if clamp else (s & 31, n & 31)
    return (((np.uint64(1) << n) - np.uint64(1)) << s).astype(np.uint32)


def _funnel(low: Any, high: Any, amount: Any, left: bool, wrap: bool) -> Any:
    both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    n = (amount & np.uint32(31) if wrap else np.minimum(amount, 32)).astype(np.uint64)
    return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)


_EXTREME = {"min": np.minimum, "max": np.maximum}
_SPACES = {
    "global": (0, SHARED_BASE),
    "shared": (SHARED_BASE, PARAM_BASE),
    "param": (PARAM_BASE, LOCAL_BASE),
    "local": (LOCAL_BASE, 1 << 63),
}


def _extreme(p: tuple[str, ...], t: type) -> Function:
    extreme = _EXTREME[p[0]]
    return (lambda x, y: np.maximum(extreme(x, y), 0)) if "relu" in p else extreme, [t, t], t


def _dot_product(p: tuple[str, ...], t: type) -> Function:
    first, second = (np.int8 if kind == "s32" else np.uint8 for kind in p[1:3])
    result = np.int32 if "s32" in p[1:3] else np.uint32

    def run(x: Any, y: Any, c: Any) -> Any:
        products = x.view(first).reshape(-1, 4).astype(np.int64) * y.view(second).reshape(-1, 4)
        return (products.sum(axis=1) + c).astype(result)

    return run, [np.uint32, np.uint32, result], result


def _is_space(p: tuple[str, ...], t: type) -> Function:
    low, high = _SPACES[p[1].split("::")[0]]
    return lambda a: (a >= np.uint64(low)) & (a < np.uint64(high)), [np.uint64], np.bool_


_U32: type = np.uint32
FUNCTIONS: dict[str, Callable[[tuple[str, ...], type], Function]] = {
    # signed, unsigned or floating by type; .relu: a negative result is 0
    "min": _extreme,
    "max": _extreme,
    # truncates towards zero; the remainder has the sign of the dividend
    "div": lambda p, t: (_quotient, [t, t], t),
    "rem": lambda p, t: (lambda x, y: np.where(y == 0, x, x - _quotient(x, y) * y), [t, t], t),
    # dp4a.atype.btype d, a, b, c: four products of bytes, added to c, which wraps; unsigned when both types are
    "dp4a": _dot_product,
    # four bytes picked from the eight of a and b by the nibbles of c, whose top bit spreads the byte's sign
    "prmt": lambda p, t: (_permute, [_U32] * 3, _U32),
    # the number of one bits, and of zero bits above the highest one, .u32
    "popc": lambda p, t: (lambda x: np.bitwise_count(x).astype(np.uint32), [unsigned(t)], _U32),
    "clz": lambda p, t: (lambda x: np.uint32(8 * x.itemsize) - _lengths(x), [unsigned(t)], _U32),
    # the highest bit that differs from the sign, or with .shiftamt the shift that takes it to the top; else all ones
    "bfind": lambda p, t: (partial(_find_leading, shift="shiftamt" in p), [t], _U32),
    # 1 for 0, else 0
    "cnot": lambda p, t: (lambda x: (x == 0).astype(x.dtype), [unsigned(t)], unsigned(t)),
    "brev": lambda p, t: (_reverse, [unsigned(t)], unsigned(t)),
    # the position of the n-th one bit of a .b32 mask from a base, upwards or, for n < 0, downwards; else all ones
    "fns": lambda p, t: (_nth_set, [_U32, _U32, np.int32], _U32),
    # the field of `len` bits at `pos`, zero- or sign-extended by type (PTX: the sign is the bit at min(pos + len - 1, msb))
    "bfe": lambda p, t: (_extract, [t, _U32, _U32], t),
    # the low `len` bits of a, put into b at `pos`
    "bfi": lambda p, t: (_insert, [t, t, _U32, _U32], t),
    # a .b32 mask of so many ones from a position; both are clamped to 32 or wrap at 32
    "bmsk": lambda p, t: (partial(_bit_mask, clamp="clamp" in p), [_U32, _U32], _U32),
    # the upper (.l) or lower (.r) word of a 64-bit shift of two .b32; the amount is clamped to 32 or wraps at 32
    "shf": lambda p, t: (partial(_funnel, left="l" in p, wrap="wrap" in p), [_U32] * 3, _U32),
    # whether a generic .u64 address lies in the window of a state space
    "isspacep": _is_space,
}


@lru_cache(maxsize=256)
def _function(parts: tuple[str, ...]) -> Function:
    """The same for equal opcodes, so that they can be done together."""
    return FUNCTIONS[parts[0]](parts, DTYPES.get(parts[-1], np.uint32))


@register(*FUNCTIONS)
def function(ins: PtxInstruction, b: Binder) -> Inline:
    """Any row of `FUNCTIONS`, unless its type is a floating-point one."""
    if is_float(ins):
        return build_float(ins, b)
    if ins.parts[0] == "prmt" and len(ins.parts) > 2:
        raise SimError("only the generic mode of prmt is supported")
    run, reads, result = _function(ins.parts)
    sources = ", ".join(b.expression(o, t) for o, t in zip(ins.operands[1:], reads, strict=False))
    return Inline([(ins.operands[0], f"{b.name(run)}({sources})", result)])
