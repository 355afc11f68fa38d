"""The tensormap proxy: a tensor map in global memory must be acquired in every CTA before TMA uses it.

Source: PTX ISA, "membar, fence" (`fence.proxy.tensormap::generic`); CUDA Programming Guide, "Using TMA to transfer multi-dimensional
arrays": the host has copied the map there, so the scope is `.sys`.  A map in parameter space needs no fence.
"""

from __future__ import annotations

from megamoe_dsl.hardware.tensor_map import DESCRIPTOR_BYTES

from ..errors import SimError
from ..interfaces import Warp
from ..lanes import Mask
from ..memory import SHARED_BASE
from ..operands import Binder
from ..parser import Instruction
from . import Straight, register


@register("fence.proxy.tensormap::generic")
def build_fence(ins: Instruction, b: Binder) -> Straight:
    """fence.proxy.tensormap::generic.acquire.sys [address], 128; a release is for maps that a kernel writes, which do not come here."""
    if "acquire" not in ins.parts:
        return Straight(lambda w, mask: None)
    if int(ins.operands[1]) != DESCRIPTOR_BYTES:
        raise SimError(f"size {ins.operands[1]}: must be {DESCRIPTOR_BYTES}")
    address, for_host = b.address(ins.operands[0]), "sys" in ins.parts

    def run(w: Warp, mask: Mask) -> None:
        if w.world.race is not None and for_host:
            maps, where = w.cta.state.setdefault("acquired maps", {}), address(w)
            for lane in w.lanes(mask):
                maps.setdefault(int(where[lane]), []).append((w.agent, w.clock.at(w.agent)))

    return Straight(run)


def check_acquired(w: Warp, address: int) -> None:
    """A finding if no fence of this CTA for the map at `address` happened before."""
    race = w.world.race
    if race is None or address >= SHARED_BASE:
        return
    acquired = w.cta.state.get("acquired maps", {}).get(address, ())
    if not any(w.clock.at(agent) >= when for agent, when in acquired):
        where = "{}+{}".format(*race.memory.find(address, DESCRIPTOR_BYTES))
        race.report("tensor map used without fence.proxy.tensormap", "the host's copy", "tensor map", where, 0, w)
