"""What every role needs: the configuration, this CTA's place, and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64

from ...device.memory import load_constant_u64
from ...device.sync import Watchdog
from ...layouts.region import Region
from .arguments import Arguments
from .layouts.symmetric import symmetric_buffer


@dataclass(frozen=True)
class Context:
    """`config` is the architecture's configuration, `smem` the shared address of its plan, `sm` the CTA's index in the grid, `cta_rank` its
    place in the pair."""

    config: cutlass.Constexpr[Any]
    args: Arguments
    smem: Int32
    sm: Int32
    cta_rank: Int32

    @property
    def region(self) -> Region:
        return symmetric_buffer(self.config.problem, self.config.arch)

    @property
    def watchdog(self) -> Watchdog:
        return Watchdog(self.args.watchdog, self.args.watchdog_ns, self.args.rank)

    def at(self, name: str, *index: Any) -> Any:
        """Address in this rank's symmetric buffer."""
        return self.region.address(self.args.sym, name, *index)

    def peer(self, rank: Any) -> Any:
        """Base address of a rank's symmetric buffer."""
        return load_constant_u64(self.args.peers + Int64(rank) * 8)

    def at_peer(self, base: Any, name: str, *index: Any) -> Any:
        """Address in the symmetric buffer that starts at `base`."""
        return self.region.address(base, name, *index)

    def shared(self, name: str, *index: Any) -> Any:
        """Shared address of an element of the SMEM plan."""
        return self.config.smem.region.address(self.smem, name, *index)

    def barrier(self, name: str, index: Any = 0) -> Any:
        """Shared address of an mbarrier (kernels/mega_moe/sm100/barriers.py)."""
        return self.shared(f"{name}_barrier", index)
