"""The routing tables on SM100: the same kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .....arch import SM100, Arch
from ..tables_config import RoutingTablesConfig


@dataclass(frozen=True)
class Sm100RoutingTablesConfig(RoutingTablesConfig):
    """Of rows of any format."""

    arch: ClassVar[Arch] = SM100
