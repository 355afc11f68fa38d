"""Integer, logic, bit and data-movement arithmetic (PTX ISA, "Integer Arithmetic", "Logic and Shift", "Comparison and Selection", mov,
prmt).

Where the sign does not matter, operands are unsigned, as registers are stored. numpy shifts by the word size or more as PTX does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from ..formats import bf16_to_f32
from ..memory import ELEMENTS, LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW_MASK, WINDOW_SHIFT
from ..operands import COMBINED
from ..parser import TYPE_BYTES
from ..values import Value, apply, unsigned, where
from . import Binder, Inline, PtxInstruction, SimError, register, vector
from .floating import build_float, is_float

Comparison = Callable[[Value, Value], Any]
_COMPARE: dict[str, Comparison] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_COMPARE_FLOAT: dict[str, Comparison] = {
    **_COMPARE, "ne": lambda x, y: (x < y) | (x > y), "equ": lambda x, y: ~((x < y) | (x > y)), "neu": operator.ne,
    "ltu": lambda x, y: ~(x >= y), "leu": lambda x, y: ~(x > y), "gtu": lambda x, y: ~(x <= y), "geu": lambda x, y: ~(x < y),
    "num": lambda x, y: (x == x) & (y == y), "nan": lambda x, y: (x != x) | (y != y),
}  # fmt: skip


def _compared(ins: PtxInstruction, b: Binder) -> Any:
    """The comparison of set and setp."""
    t, operator = b.dtype(ins), ins.parts[1]
    half = ins.parts[-1] == "bf16"
    table = _COMPARE_FLOAT if np.issubdtype(t, np.floating) or half else _COMPARE
    if operator not in table:
        raise SimError(f"unknown comparison {operator}")
    if table is _COMPARE and operator in ("eq", "ne", "lo", "ls", "hi", "hs"):
        t = unsigned(t)
    x, y = (b.value(o, t) for o in ins.operands[1:3])
    if half:
        x, y = (apply(bf16_to_f32, one, dtype=np.float32) for one in (x, y))
    return table[operator](x, y)


@register("setp")
def set_predicate(ins: PtxInstruction, b: Binder) -> Inline:
    """setp: a comparison, combined with a predicate if one is given; `p|q` also writes the opposite, combined likewise."""
    holds = _compared(ins, b)
    true, _, false = ins.operands[0].partition("|")
    results = [(true, holds), *([(false, ~holds)] if false else [])]
    if combine := next((COMBINED[p] for p in ins.parts[2:-1] if p in ("and", "or", "xor")), None):
        results = [(name, combine(one, b.value(ins.operands[3], np.bool_))) for name, one in results]
    return Inline(results)


@register("set")
def set_value(ins: PtxInstruction, b: Binder) -> Inline:
    """set: a comparison as a 32-bit value, 1.0 (`.f32`) or all ones where it holds, else 0."""
    yes = b.value("0f3F800000" if ins.parts[-2] == "f32" else "-1", np.uint32)
    return Inline([(ins.operands[0], where(_compared(ins, b), yes, b.value("0", np.uint32)))])


def _pack(*parts: Any) -> Any:
    packed = np.ascontiguousarray(np.stack(parts, axis=1))
    return packed.view(ELEMENTS[packed.shape[1] * packed.itemsize])[:, 0]


@lru_cache
def part_of(part: type, index: int) -> Callable[[Any], Any]:
    """A function of wide elements that gives one of the smaller ones in each."""
    return lambda values: np.ascontiguousarray(np.ascontiguousarray(values).view(part).reshape(len(values), -1)[:, index])


@register("mov")
def move(ins: PtxInstruction, b: Binder) -> Inline:
    """mov: one value, or a vector packed into a wider register or unpacked from one, lowest element first."""
    dest, source = ins.operands
    if ins.parts[-1] == "pred":
        return Inline([(dest, b.value(source, np.bool_))])
    total = TYPE_BYTES[ins.parts[-1]]
    if source.startswith("{") or dest.startswith("{"):
        parts = vector(source if source.startswith("{") else dest)
        bits, small, whole = 8 * total // len(parts), ELEMENTS[total // len(parts)], ELEMENTS[total]
        if source.startswith("{"):
            values = [b.value(p, small) for p in parts]
            if len(parts) == 2 and total <= 8:
                return Inline([(dest, values[0].astype(whole) | values[1].astype(whole) << bits)])
            return Inline([(dest, apply(_pack, *values, dtype=whole))])
        value = b.value(source, whole)
        if total > 8:
            return Inline([(d, apply(part_of(small, k), value, dtype=small)) for k, d in enumerate(parts)])
        return Inline([(d, (value >> bits * k if k else value).astype(small)) for k, d in enumerate(parts)])
    t = b.dtype(ins)
    if source in b.index and np.dtype(b.storage[b.index[source]]).itemsize == total:
        t = b.storage[b.index[source]]
    return Inline([(dest, b.value(source, t))])


@register("lop3")
def logic3(ins: PtxInstruction, b: Binder) -> Inline:
    """lop3: any bitwise function of three .b32, given by its table of 8 bits."""
    x, y, z = (b.value(o, np.uint32) for o in ins.operands[1:4])
    table = int(ins.operands[4], 0)
    known = {0xC0: x & y, 0xFC: x | y, 0x3C: x ^ y, 0x96: x ^ y ^ z, 0x80: x & y & z, 0xFE: x | y | z, 0xF8: x | (y & z),
             0xE0: x & (y | z), 0xEA: (x & y) | z, 0xCA: (x & y) | (~x & z)}  # fmt: skip
    if (value := known.get(table)) is None:
        terms = [(x if k & 4 else ~x) & (y if k & 2 else ~y) & (z if k & 1 else ~z) for k in range(8) if table >> k & 1]
        value = reduce(operator.or_, terms, b.value("0", np.uint32))
    return Inline([(ins.operands[0].partition("|")[0], value)])


# ---- instructions that are a function of their sources

Function = tuple[Callable[..., Any], list[type], type | None]
"""What computes it, of arrays of these types, and the type of the result; None: of values, to a value."""
_WIDE: dict[type, type] = {np.int16: np.int32, np.uint16: np.uint32, np.int32: np.int64, np.uint32: np.uint64}


def _high64(x: Any, y: Any) -> Any:
    products = [int(p) * int(q) >> 64 & 0xFFFFFFFFFFFFFFFF for p, q in zip(x, y, strict=True)]
    return np.array(products, np.uint64).view(x.dtype)


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
        positions = [base & 31] if n == 0 else range(base, 32) if n > 0 else range(min(base, 31), -1, -1)
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


_SPACES = {
    "global": (0, SHARED_BASE),
    "shared": (SHARED_BASE, PARAM_BASE),
    "param": (PARAM_BASE, LOCAL_BASE),
    "local": (LOCAL_BASE, 1 << 63),
}


def _product(p: tuple[str, ...], t: type) -> Function:
    source = t if "wide" in p or "hi" in p else unsigned(t)
    result = _WIDE[t] if "wide" in p else source

    def run(x: Value, y: Value, *addend: Value) -> Value:
        if "hi" in p and t in (np.uint64, np.int64):
            product = apply(_high64, x, y)
        elif "hi" in p:
            product = (x.astype(_WIDE[t]) * y.astype(_WIDE[t]) >> 8 * np.dtype(t).itemsize).astype(t)
        else:
            product = x.astype(result) * y.astype(result)
        return product + addend[0] if addend else product

    return run, [source, source, result], None


def _extreme(p: tuple[str, ...], t: type) -> Function:
    extreme = COMBINED[p[0]]
    return (lambda x, y: np.maximum(extreme(x, y), 0)) if "relu" in p else extreme, [t, t], t


def _dot_product(p: tuple[str, ...], t: type) -> Function:
    first, second = (np.int8 if kind == "s32" else np.uint8 for kind in p[1:3])
    result = np.int32 if "s32" in p[1:3] else np.uint32

    def run(x: Any, y: Any, c: Any) -> Any:
        products = x.view(first).reshape(-1, 4).astype(np.int64) * y.view(second).reshape(-1, 4)
        return (products.sum(axis=1) + c).astype(result)

    return run, [np.uint32, np.uint32, result], result


def _generic(p: tuple[str, ...], t: type) -> Function:
    space = next(part for part in p[1:] if part != "to").split("::")[0]
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE}.get(space, 0)
    return lambda address: address - base if "to" in p else address + base, [t], None


def _mapped(p: tuple[str, ...], t: type) -> Function:
    def run(address: Value, rank: Value) -> Any:
        there = (address & WINDOW_MASK) | (rank.to(t) << WINDOW_SHIFT)
        return there + SHARED_BASE if "shared::cluster" not in p and t == np.uint64 else there

    return run, [t, _U32], None


def _test(p: tuple[str, ...], t: type) -> Function:
    tests: dict[str, Any] = {"finite": np.isfinite, "infinite": np.isinf, "notanumber": np.isnan, "number": lambda x: ~np.isnan(x)}
    if p[1] not in tests:
        raise SimError(f"testp.{p[1]} is not supported")
    return tests[p[1]], [t], np.bool_


def _is_space(p: tuple[str, ...], t: type) -> Function:
    low, high = _SPACES[p[1].split("::")[0]]
    return lambda a: (a >= np.uint64(low)) & (a < np.uint64(high)), [np.uint64], np.bool_


_U32: type = np.uint32
_WRAPPING = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "neg": np.negative,
}  # fmt: skip


def _wrapping(p: tuple[str, ...], t: type) -> Function:
    if "cc" in p or "sat" in p:
        raise SimError("carry and saturating integer arithmetic are not supported")
    return _WRAPPING[p[0]], [unsigned(t)] * _WRAPPING[p[0]].nin, unsigned(t)


FUNCTIONS: dict[str, Callable[[tuple[str, ...], type], Function]] = {
    **dict.fromkeys(_WRAPPING, _wrapping),
    "abs": lambda p, t: (np.abs, [t], t),
    # by a .u32 amount; shr brings in zeros or, for signed types, the sign
    "shl": lambda p, t: (lambda x, amount: x << amount.to(t), [t, _U32], None),
    "shr": lambda p, t: (lambda x, amount: x >> amount.to(t), [t, _U32], None),
    # the first source where the predicate holds, else the second
    "selp": lambda p, t: (lambda yes, no, chosen: where(chosen, yes, no), [unsigned(t), unsigned(t), np.bool_], None),
    # the low half, the upper half (.hi) or all (.wide) of the product, plus c for mad
    **dict.fromkeys(("mul", "mad"), _product),
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
    # an address of a state space to the generic one, or (.to) back; global and parameter addresses are the same in both
    "cvta": _generic,
    # the address of the same shared variable in another CTA of the cluster
    "mapa": _mapped,
    # the rank in the cluster, .u32, of the CTA that a shared address belongs to
    "getctarank": lambda p, t: (lambda address: (address >> WINDOW_SHIFT & 0xFF).astype(_U32), [t], None),
    # whether a floating-point number is of a class
    "testp": _test,
    # whether a generic .u64 address lies in the window of a state space
    "isspacep": _is_space,
}


_function = lru_cache(maxsize=256)(lambda parts, t: FUNCTIONS[parts[0]](parts, t))
"""The same for equal opcodes, so that they can be done together."""


@register(*FUNCTIONS)
def function(ins: PtxInstruction, b: Binder) -> Inline:
    """Any row of `FUNCTIONS`, unless it is floating-point arithmetic."""
    if is_float(ins):
        return build_float(ins, b)
    if ins.parts[0] == "prmt" and len(ins.parts) > 2:
        raise SimError("only the generic mode of prmt is supported")
    run, reads, result = _function(ins.parts, np.uint64 if ins.parts[0] == "isspacep" else b.dtype(ins))
    sources = (b.value(o, t) for o, t in zip(ins.operands[1:], reads, strict=False))
    return Inline([(ins.operands[0], run(*sources) if result is None else apply(run, *sources, dtype=result))])
