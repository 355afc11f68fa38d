"""Addresses of a kernel's tensor maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from functools import cache
from typing import Any

from cutlass import Int64

from ...device.tensor_map import address


@cache
def map_addresses(names: tuple[str, ...]) -> type[Any]:
    """A class of the addresses of tensor maps with these names."""
    return make_dataclass("MapAddresses", [(name, Int64) for name in names], frozen=True, namespace={"__module__": __name__})


def addresses(names: tuple[str, ...], maps: Sequence[Any]) -> Any:
    """The addresses of a kernel's tensor maps, by name."""
    return map_addresses(names)(*map(address, maps))
