"""Integer arithmetic that serves host ints and traced DSL integers: branch-free, so that one expression is both oracle and kernel code."""

from __future__ import annotations

from typing import Any

Int = Any  # a Python int, or a traced cutlass integer


def is_host(*values: Int) -> bool:
    return all(isinstance(v, int) for v in values)


def align(value: int, granule: int) -> int:
    return (value + granule - 1) // granule * granule


def select(condition: Any, then: Int, otherwise: Int) -> Int:
    """`then if condition else otherwise`; both sides are evaluated, in the wider of their types."""
    if isinstance(condition, (bool, int)):
        return then if condition else otherwise
    import cutlass

    kinds = [type(v) for v in (then, otherwise) if isinstance(v, cutlass.Numeric)]
    numeric = max(kinds, key=lambda kind: kind.width, default=cutlass.Int32)
    return numeric(cutlass.select_(condition, numeric(then), numeric(otherwise)))


def minimum(a: Int, b: Int) -> Int:
    """The smaller of two integers."""
    if is_host(a, b):
        return min(a, b)
    import cutlass

    return cutlass.min(a, b)


def div(a: Int, b: Int) -> Int:
    """`a // b` for a >= 0 and b > 0.  Traced: unsigned, because rounding towards minus infinity costs a fix-up sequence."""
    if is_host(a, b):
        return a // b
    from cutlass import Int32, Uint32

    return Int32(Uint32(a) // (b if is_host(b) else Uint32(b)))


def ceil_div(a: Int, constant: int) -> Int:
    return div(a + (constant - 1), constant)


def wide(a: Int) -> Int:
    """64-bit copy of a traced integer: byte offsets exceed 32 bits."""
    if is_host(a):
        return a
    from cutlass import Int64

    return Int64(a)
