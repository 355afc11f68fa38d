"""Fields of a tensor map before it is one: on the host integers, in a launching function traced ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .tensor_map import TensorMap, TensorMapDtype


class MapFields(NamedTuple):
    """Fields of a `TensorMap`, of which addresses, dimensions and strides may be traced integers."""

    address: Any
    dtype: TensorMapDtype
    dims: Sequence[Any]
    strides: Sequence[Any]
    box: tuple[int, ...]
    swizzle: int
    l2_promotion: int = 128

    @property
    def tensor_map(self) -> TensorMap:
        """The map of fields that are integers.  Raises ValueError for an address or a stride that TMA does not take."""
        return TensorMap(**self._asdict())
