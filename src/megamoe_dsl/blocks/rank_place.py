"""What a kernel's context says of its CTA among those of all ranks: what rank barriers ask for, and where other ranks' buffers are."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from cutlass import Int64

from ..device.memory import load_constant_u64
from ..device.sync import Watchdog


class RankPlace:
    """Of a context with a configuration `config`, of so many CTAs for a problem, and run-time arguments `args`.

    waits  what the watchdog can report: GRID of SM 0 that waits for the other CTAs, RANK of a CTA that waits for the other ranks
    """

    waits: ClassVar[Any]
    config: Any
    args: Any

    @property
    def num_sms(self) -> int:
        return int(self.config.num_sms)

    @property
    def num_ranks(self) -> int:
        """Ranks that compute the layer together."""
        return int(self.config.problem.num_ranks)

    @property
    def grid_wait(self) -> IntEnum:
        """What the watchdog reports of SM 0 when it waits for the other CTAs."""
        return self.waits.GRID  # type: ignore[no-any-return]

    @property
    def rank_wait(self) -> IntEnum:
        """What the watchdog reports of a CTA that waits for the other ranks."""
        return self.waits.RANK  # type: ignore[no-any-return]

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog of this launch, for waits on other CTAs and ranks."""
        return Watchdog(self.args.watchdog, self.args.watchdog_ns, self.args.rank)

    def peer(self, rank: Any) -> Any:
        """Base address of a rank's symmetric buffer."""
        return load_constant_u64(self.args.peers + Int64(rank) * 8)
