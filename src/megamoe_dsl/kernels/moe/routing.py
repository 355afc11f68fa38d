"""What a top-k slot says, on every architecture."""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Uint64

from ...device.memory import load_constant_u64
from ...layouts.arith import select
from .context import Context

MASKED = -1


def expert_of(ctx: Context, token: Any, slot: Any) -> Int32:
    """Expert of a token's slot; negative when the slot is masked.

    An index that names no expert masks its slot, be it -1 or not: it must not become an address on another rank.  `slot` may exceed
    top-k: slots of all tokens lie one after another.
    """
    index = Uint64(load_constant_u64(ctx.at("topk_idx", token, slot)))
    return select(index < ctx.config.problem.num_experts, Int32(index), Int32(MASKED))
