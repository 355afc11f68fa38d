"""Values of 32 lanes as expressions: what instructions of pure arithmetic assign, evaluated with those of their neighbors (`segment`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from .memory import ELEMENTS

AS_TYPE, VIEW = np.ndarray.astype, np.ndarray.view
"""What becomes of one operand by the type of the value."""
_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


@dataclass(frozen=True, eq=False)
class Value(NDArrayOperatorsMixin):
    """`source` is a function of `operands`, arrays of any number of lanes, and makes as many of `dtype`. Without operands it is a register,
    by its number, an array, or a function of the warp. numpy's operators and ufuncs of values are values."""

    source: Any
    dtype: type
    operands: tuple[Value, ...] = ()

    def __array_ufunc__(self, function: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        return apply(function, *(one if isinstance(one, Value) else constant(one, self.dtype) for one in operands))

    def view(self, dtype: type) -> Value:
        """The same bits as another type."""
        return self if self.dtype == dtype else Value(VIEW, dtype, (self,))

    def astype(self, dtype: type) -> Value:
        """Cut off, or extended by the sign of the type it has."""
        if isinstance(self.source, np.ndarray):
            return Value(self.source.astype(dtype), dtype)
        return self if self.dtype == dtype else Value(AS_TYPE, dtype, (self,))

    def to(self, dtype: type) -> Value:
        """The same bits where the sizes agree, else `astype` of them."""
        if np.dtype(self.dtype).itemsize == np.dtype(dtype).itemsize and np.bool_ not in (self.dtype, dtype):
            return self.view(dtype)
        return (self.view(unsigned(self.dtype)) if np.issubdtype(self.dtype, np.floating) else self).astype(dtype)

    def leaves(self) -> Iterator[Value]:
        if not self.operands:
            yield self
        for one in self.operands:
            yield from one.leaves()


def unsigned(dtype: type) -> type:
    return dtype if dtype == np.bool_ else ELEMENTS[np.dtype(dtype).itemsize]


def constant(number: Any, dtype: type) -> Value:
    """The same number in all lanes; integers wrap."""
    return Value(np.array(number).astype(dtype).repeat(32), dtype)


def apply(function: Callable[..., NDArray[Any]], *operands: Value, dtype: type | None = None) -> Value:
    """A function of values; the result has the first one's type unless it compares or another is given."""
    return Value(function, np.bool_ if function in _COMPARISONS else dtype or operands[0].dtype, operands)


def where(condition: Value, yes: Value, no: Value) -> Value:
    return apply(np.where, condition, yes, no, dtype=yes.dtype)
