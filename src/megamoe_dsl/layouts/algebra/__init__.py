"""The layout algebra: shape:stride layouts over nested tuples, exact on Python ints, callable on traced DSL integers.

Source: CuTe layout algebra (NVIDIA/cutlass, media/docs/cpp/cute/02_layout_algebra.md); every function states its post-condition.

    Layout((4, 8), (8, 1))(2, 3)                        19
    composition(a, b), complement(a, n)                 A after B; what A leaves out
    logical_divide(a, t), logical_product(a, t)         tiles of A; A repeated
    right_inverse(a), coalesce(a)
    swizzled(swizzle, a)                                a swizzle after a layout
"""

from .coalesce import coalesce, same_function
from .composed import ComposedLayout, swizzled
from .composition import Tiler, composition, identity
from .divide import complement, logical_divide, logical_product
from .int_tuple import (
    AlgebraError,
    Coordinate,
    IntTuple,
    compact_strides,
    congruent,
    coordinates,
    crd2idx,
    flatten,
    idx2crd,
    product,
    unflatten,
)
from .inverse import right_inverse
from .layout import Layout, join, row_major

__all__ = [
    "AlgebraError",
    "ComposedLayout",
    "Coordinate",
    "IntTuple",
    "Layout",
    "Tiler",
    "coalesce",
    "compact_strides",
    "complement",
    "composition",
    "congruent",
    "coordinates",
    "crd2idx",
    "flatten",
    "identity",
    "idx2crd",
    "join",
    "logical_divide",
    "logical_product",
    "product",
    "right_inverse",
    "row_major",
    "same_function",
    "swizzled",
    "unflatten",
]
