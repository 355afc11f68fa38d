"""mbarriers (PTX ISA, mbarrier).  A barrier is the shared address of its 8 bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from .ptx import emit, emit_to

LEADER = -0x01000001  # 0xFEFFFFFF as a signed literal (the unsigned one widens to 64 bits): the same offset in the even CTA of the pair

init = partial(emit, "mbarrier.init.shared::cta.b64 [{}], {};")
"""(barrier, arrivals): by one thread, before anybody uses the barrier: a phase completes after this many arrivals."""
fence_init = partial(emit, "fence.mbarrier_init.release.cluster;")
"""Makes initialized barriers visible to the cluster, together with a cluster barrier."""
arrive = partial(emit, "mbarrier.arrive.shared::cta.b64 _, [{}];")
"""On this CTA's barrier, with release semantics for the CTA."""
_RELEASE = "{{{{\n\t.reg .pred p;\n\tsetp.ge.s32 p, {{1}}, 0;\n\t@p mbarrier.arrive.shared::{}.b64 _, [{{0}}];\n\t}}}}"
release = partial(emit, _RELEASE.format("cta"))
"""(barrier, word): `arrive` for a reader, only after `word` has arrived in its register; `word` was loaded from shared memory and is never
negative.  A plain arrival can overtake loads that are under way: neither the barrier unit nor the compiler waits for them
(docs/lab/hopper.md)."""
release_cluster = partial(emit, _RELEASE.format("cluster"))  # `release` on a barrier of any CTA of the cluster
arrive_cluster = partial(emit, "mbarrier.arrive.shared::cluster.b64 _, [{}];")
"""On a barrier of any CTA of the cluster, with default semantics.  `.release.cluster` would add a MEMBAR, which is not needed: the
arrival says that something has been read, either TMEM, ordered by tcgen05.fence, or SMEM, by instructions that have ended."""
arrive_released = partial(emit, "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{}];")
"""On a barrier of any CTA of the cluster: what this thread has written or waited for lies before it for whoever waits."""
arrive_expect = partial(emit, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};")
"""(barrier, num_bytes): `arrive`; the phase then also needs this many bytes from TMA to complete."""
arrive_expect_cluster = partial(emit, "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [{}], {};")
"""`arrive_expect` on a barrier of either CTA; relaxed, because a loader has written nothing itself."""


def try_wait(barrier: Any, parity: Any) -> Any:
    """Acquire at CTA scope: `.acquire.cluster` would invalidate the L1 cache at every wait."""
    template = "{{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2};\n\tselp.b32 {0}, 1, 0, p;\n\t}}"
    return emit_to(Int32, template, barrier, parity)


@cute.jit
def wait(barrier: Int32, parity: Int32):
    """Waits for the phase of this parity.  No watchdog here: whatever an mbarrier of this kernel waits for comes from a wait on
    global memory, which has one (sync.py)."""
    while try_wait(barrier, parity) == 0:
        pass
