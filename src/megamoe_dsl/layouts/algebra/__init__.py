"""The layout algebra: shape:stride layouts over nested tuples, exact on Python ints, callable on traced DSL integers.

Source: CuTe layout algebra (NVIDIA/cutlass, media/docs/cpp/cute/02_layout_algebra.md); every function states its post-condition.

    Layout((4, 8), (8, 1))(2, 3)                        19
    composition(a, b), complement(a, n)                 A after B; what A leaves out
    logical_divide(a, t), logical_product(a, t)         tiles of A; A repeated
    right_inverse(a), coalesce(a)
    swizzled(swizzle, a)                                a swizzle after a layout
"""

from .composition import complement, composition, identity, logical_divide, logical_product, right_inverse
from .int_tuple import (
    AlgebraError,
    IntTuple,
    compact_strides,
    congruent,
    coordinates,
    crd2idx,
    flatten,
    idx2crd,
    unflatten,
)
from .layout import ComposedLayout, Layout, coalesce, join, row_major, same_function, swizzled

__all__ = [
    "AlgebraError", "ComposedLayout", "IntTuple", "Layout", "coalesce", "compact_strides", "complement", "composition", "congruent",
    "coordinates", "crd2idx", "flatten", "identity", "idx2crd", "join", "logical_divide", "logical_product", "right_inverse", "row_major",
    "same_function", "swizzled", "unflatten",
]  # fmt: skip
