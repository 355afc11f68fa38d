"""Nested tuples of integers: the shapes, strides and coordinates of layouts.

Source: CuTe layout algebra (NVIDIA/cutlass, media/docs/cpp/cute/01_layout.md).  The first mode runs fastest everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product as ranges
from typing import Any, TypeAlias

from ..arith import Int, div, is_host

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
"""A positive or zero int, or a tuple of such."""

Coordinate: TypeAlias = Any
"""An `IntTuple` whose leaves may be traced integers."""


class AlgebraError(ValueError):
    """An operation of the algebra is not defined for its operands; the message says which condition fails."""


def flatten(value: Coordinate) -> tuple[Any, ...]:
    """The leaves, left to right."""
    if isinstance(value, tuple):
        return tuple(leaf for part in value for leaf in flatten(part))
    return (value,)


def product(shape: IntTuple) -> int:
    """Number of coordinates of a shape."""
    if isinstance(shape, tuple):
        result = 1
        for part in shape:
            result *= product(part)
        return result
    return shape


def congruent(a: Coordinate, b: Coordinate) -> bool:
    """Whether both nest in the same way."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b, strict=True))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def unflatten(leaves: Iterable[Any], profile: IntTuple) -> Any:
    """The leaves nested as `profile` is.  Post-condition: flatten(unflatten(flatten(x), p)) == flatten(x), congruent to p."""
    remaining = iter(leaves)

    def build(part: IntTuple) -> Any:
        return tuple(build(p) for p in part) if isinstance(part, tuple) else next(remaining)

    return build(profile)


def compact_strides(shape: IntTuple, start: int = 1) -> IntTuple:
    """Column-major strides: leaf i has `start` times the product of the leaves before it."""
    strides, current = [], start
    for extent in flatten(shape):
        strides.append(current)
        current *= extent
    return unflatten(strides, shape)


def coordinates(shape: IntTuple) -> Iterator[Coordinate]:
    """All natural coordinates in the order of their index: the first leaf runs fastest."""
    for leaves in ranges(*(range(n) for n in reversed(flatten(shape)))):
        yield unflatten(reversed(leaves), shape)


def idx2crd(index: Int, shape: IntTuple) -> Coordinate:
    """The natural coordinate of an index, congruent to `shape`; the last leaf takes what is left over, however large.

    Post-condition, for 0 <= index: crd2idx(idx2crd(index, shape), shape, compact_strides(shape)) == index; in bounds when
    index < product(shape).
    Works on traced integers: divisions are unsigned, by constants.
    """
    if not isinstance(shape, tuple):
        return index
    parts: list[Coordinate] = []
    for position, part in enumerate(shape):
        extent = product(part)
        if position == len(shape) - 1:
            parts.append(idx2crd(index, part))
        elif extent == 1:
            parts.append(idx2crd(_zero(index), part))
        else:
            quotient = div(index, extent)
            parts.append(idx2crd(index - quotient * extent, part))
            index = quotient
    return tuple(parts)


def _zero(index: Int) -> Int:
    return 0 if is_host(index) else type(index)(0)


def crd2idx(coordinate: Coordinate, shape: IntTuple, stride: IntTuple) -> Int:
    """Index of a coordinate: the inner product of natural coordinate and stride.

    Any mode of the coordinate may be given as one integer, which stands for `idx2crd` of it.  Works on traced integers.
    Raises `AlgebraError` when the coordinate's rank does not fit the shape.
    """
    if isinstance(coordinate, tuple):
        if not isinstance(shape, tuple) or len(coordinate) != len(shape):
            raise AlgebraError(f"coordinate {coordinate}: does not fit shape {shape}")
        assert isinstance(stride, tuple)
        terms = [crd2idx(c, s, d) for c, s, d in zip(coordinate, shape, stride, strict=True)]
        return _sum(terms)
    if isinstance(shape, tuple):
        if not shape:
            return 0
        return crd2idx(idx2crd(coordinate, shape), shape, stride)
    return coordinate * stride


def _sum(terms: list[Int]) -> Int:
    """Left to right, without a leading 0 that a traced addition would keep."""
    if not terms:
        return 0
    total, *rest = terms
    for term in rest:
        total = total + term
    return total
