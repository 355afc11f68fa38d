"""CTAs of a cluster: their barrier, and shared memory of one another (PTX ISA, barrier.cluster, mapa, st.async)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32

from .ptx import emit, emit_to


@dataclass(frozen=True)
class ClusterPlace:
    """A CTA's place in its cluster of `size`."""

    rank: Int32
    size: cutlass.Constexpr[int]

    @property
    def everyone(self) -> Int32:
        return Int32((1 << self.size) - 1)

    @property
    def itself(self) -> Int32:
        """Mask of this CTA alone."""
        return Int32(1) << self.rank


def sync_cluster() -> None:
    """All threads of all CTAs of the cluster, but for those that have exited."""
    emit("barrier.cluster.arrive.release.aligned;")
    emit("barrier.cluster.wait.acquire.aligned;")


def in_cta(address: Any, rank: Any) -> Any:
    """Shared address, for instructions on `.shared::cluster`, of the same place in the cluster's CTA `rank`."""
    return emit_to(Int32, "mapa.shared::cluster.u32 {}, {}, {};", address, rank)


def store_async_v4(address: Any, values: tuple[Any, ...], barrier: Any) -> None:
    """16 bytes into the SMEM of a CTA of the cluster; they count on `barrier`, of the same CTA."""
    emit(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{}], {{{}, {}, {}, {}}}, [{}];",
        *(address, *values, barrier),
    )
