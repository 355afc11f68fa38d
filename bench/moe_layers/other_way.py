"""What is timed beside ours: how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Launch = Callable[[], Any]


@dataclass(frozen=True)
class OtherWay:
    """Of doing a layer, or a part of it.

    make   the launch, whose kernels may be compiled when it is first called.  May raise whatever a library raises
    whole  whether the launch returns the layer's result, which is then compared with what is known of it
    """

    make: Callable[[], Launch]
    whole: bool = False

    @classmethod
    def of(cls, launch: Launch, whole: bool = False) -> OtherWay:
        """A launch that is there already."""
        return cls(lambda: launch, whole)
