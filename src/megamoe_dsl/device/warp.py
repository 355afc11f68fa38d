"""Thread roles, what the threads of a warp do together, and the CTAs of a cluster: their barrier, and shared memory of one another
(PTX ISA, barrier.cluster, mapa, st.async)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from .ptx import emit, emit_to


def elect() -> Any:
    """True in one lane of a converged warp."""
    return emit_to(Int32, "{{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.b32 {0}, 1, 0, p;\n\t}}") != 0


ballot = partial(emit_to, Int32, "{{\n\t.reg .pred p;\n\tsetp.ne.b32 p, {1}, 0;\n\tvote.sync.ballot.b32 {0}, p, 0xffffffff;\n\t}}")
"""Bit l: the condition in lane l."""
match_lanes = partial(emit_to, Int32, "match.any.sync.b32 {}, {}, 0xffffffff;")
"""Mask of the lanes that have the same word."""
lowest_bit = partial(emit_to, Int32, "{{\n\t.reg .b32 r;\n\tbrev.b32 r, {1};\n\tbfind.shiftamt.u32 {0}, r;\n\t}}")
"""Index of the lowest set bit of a non-zero mask."""
sleep = partial(emit, "nanosleep.u32 {};")  # for about so many nanoseconds
popc = partial(emit_to, Int32, "popc.b32 {}, {};")


def lanes_below() -> Any:
    return Int32(cute.arch.lanemask_lt())


warp_max_u32 = partial(emit_to, Int32, "redux.sync.max.u32 {}, {}, 0xffffffff;")
"""The largest value of the 32 lanes, unsigned."""
warp_min_u32 = partial(emit_to, Int32, "redux.sync.min.u32 {}, {}, 0xffffffff;")
"""The smallest value of the 32 lanes, unsigned."""
shuffle = partial(emit_to, Int32, "shfl.sync.idx.b32 {}, {}, {}, 31, 0xffffffff;")
"""(value, lane): the value that `lane` holds."""


def inclusive_sum(value: Any) -> Any:
    """The sum of an integer over this lane and those below."""
    for distance in range(5):
        value = value + shuffle_up(value, 1 << distance)
    return value


shuffle_f32 = partial(emit_to, Float32, "shfl.sync.idx.b32 {}, {}, {}, 31, 0xffffffff;")
shuffle_up = partial(emit_to, Int32, "{{\n\t.reg .pred p;\n\tshfl.sync.up.b32 {0}|p, {1}, {2}, 0, 0xffffffff;\n\t@!p mov.b32 {0}, 0;\n\t}}")
"""(value, delta): the value `delta` lanes below; 0 in the first `delta` lanes."""
shuffle_xor_f32 = partial(emit_to, Float32, "shfl.sync.bfly.b32 {}, {}, {}, 31, 0xffffffff;")
"""(value, mask): the float that the lane with this number XOR `mask` holds."""
shuffle_xor = partial(emit_to, Uint32, "shfl.sync.bfly.b32 {}, {}, {}, 31, 0xffffffff;")
"""(value, mask): the word that the lane with this number XOR `mask` holds."""
shuffle_xor_among = partial(emit_to, Uint32, "shfl.sync.bfly.b32 {}, {}, {}, 31, {};")
"""(value, mask, members): as `shuffle_xor`, among the lanes of the mask `members` only; other lanes may have diverged."""


def over_lanes(combine: Callable[..., Any], value: Any, masks: Iterable[int], shuffle: Callable[..., Any] = shuffle_xor_f32) -> Any:
    """A lane's value combined with those of all lanes whose numbers differ from its own in bits of the masks."""
    return reduce(lambda found, mask: combine(found, shuffle(found, mask)), masks, value)


sync_warp = partial(emit, "bar.warp.sync 0xffffffff;")
"""Waits for all 32 lanes; what any of them wrote before is visible to all of them after."""
smem_base = partial(emit_to, Int32, "mov.b32 {}, {};")  # 32-bit shared address of a `cutlass.Array` in SMEM


def set_max_registers(count: int, *, grow: bool) -> None:
    """PTX ISA, setmaxnreg: executed by all warps of a warpgroup."""
    emit(f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};")


named_barrier = partial(emit, "barrier.cta.sync.aligned {}, {};")
"""(index, threads): waits for this many threads of the CTA at a hardware barrier."""


def store_where(condition: Any, store: Callable[[], None]) -> None:
    """Calls `store` where the condition holds; Python's True compiles to no branch."""
    if condition is True:
        store()
    else:
        _store_where(condition, store)


@cute.jit
def _store_where(condition: cutlass.Boolean, store: cutlass.Constexpr[Callable[[], None]]):
    if condition:
        store()


@dataclass(frozen=True)
class ClusterPlace:
    """A CTA's place in its cluster of `size`."""

    rank: Int32
    size: cutlass.Constexpr[int]


def sync_cluster() -> None:
    """Cluster barrier of all threads that have not exited."""
    emit("barrier.cluster.arrive.release.aligned;")
    emit("barrier.cluster.wait.acquire.aligned;")


in_cta = partial(emit_to, Int32, "mapa.shared::cluster.u32 {}, {}, {};")
"""(address, rank): shared address, for instructions on `.shared::cluster`, of the same place in the cluster's CTA `rank`."""

store_async_v4 = partial(emit, "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{}], {{{}, {}, {}, {}}}, [{}];")
"""(address, words, barrier): 16 bytes into the SMEM of a CTA of the cluster; they count on `barrier`, of the same CTA."""
