"""A stage whose token scales threads have copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .....device.mbarrier import wait
from .....device.memory import fence_async_shared
from .....device.ring import Stage


@dataclass(frozen=True)
class CopiedStage(Stage):
    """`copied_barrier` counts the threads whose scales have arrived in this CTA."""

    @property
    def copied(self) -> Any:
        """Shared address of that mbarrier."""
        return self.shared("copied_barrier")

    def wait_copied(self) -> None:
        """Until this CTA's token scales are there, and the tensor core sees them."""
        wait(self.copied, self.ring.phase)
        fence_async_shared()

    def wait_full(self) -> None:
        """The MMA warp: until the stage is loaded in both CTAs."""
        super().wait_full()
        self.wait_copied()
