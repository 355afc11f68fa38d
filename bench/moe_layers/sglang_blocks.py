"""Slots sorted by expert into whole blocks, as SGLang's Triton kernels want them: on the host, and by what SGLang sorts with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from megamoe_dsl.kernel_cases.gather import sorted_rows
from megamoe_dsl.runtime.expert_call import ExpertCall
from moe_layers import sglang_site


class SlotBlocks(NamedTuple):
    """Each expert's slots, filled up to whole blocks with a slot past the last.

    ids       int32 [at least the rows of all blocks]
    of_block  int32 [at least the blocks], each block's expert
    rows      int32 [1], of all blocks together
    """

    ids: torch.Tensor
    of_block: torch.Tensor
    rows: torch.Tensor

    def slots(self, block_m: int) -> torch.Tensor:
        """Expert and slot of each row in blocks of `block_m`, sorted: the order of an expert's slots is not theirs to promise."""
        rows = int(self.rows)
        experts = self.of_block[: rows // block_m].repeat_interleave(block_m).long()
        return ((experts << 32) + self.ids[:rows]).sort().values


Sort = Callable[[], SlotBlocks]


def sorted_blocks(call: ExpertCall, block_m: int) -> SlotBlocks:
    """Of a call, worked out on the host."""
    slots, experts = call.rows, call.layer.num_experts
    counts = torch.bincount(call.topk_idx.flatten().cpu(), minlength=experts)
    place, rows = sorted_rows(counts.tolist(), block_m)
    ids = torch.full((rows,), slots, dtype=torch.int32)
    ids[place] = call.topk_idx.flatten().cpu().argsort(stable=True).int()
    of_block = torch.arange(experts, dtype=torch.int32).repeat_interleave((counts + block_m - 1) // block_m)
    device = call.x.device
    return SlotBlocks(ids.to(device), of_block.to(device), torch.tensor([rows], dtype=torch.int32, device=device))


def sglang_sort(call: ExpertCall, site: Path, block_m: int) -> Sort:
    """SGLang's `moe_align_block_size`, compiled from the wheel's sources, into memory of the size that SGLang gives it.

    Experts are int32, as its router leaves them.  Raises ImportError where the wheel lacks it, RuntimeError where it does not compile or
    its blocks are not those of `sorted_blocks`."""
    alignment = sglang_site.load(site, sglang_site.ALIGNMENT)
    buckets = call.layer.num_experts + 1  # theirs has one for slots without an expert
    chosen = call.topk_idx.int()
    padded = call.rows * block_m if call.rows < buckets else call.rows + buckets * (block_m - 1)
    padded = -(-padded // 4) * 4  # filled four at a time
    ids, of_block, rows, sums = (
        torch.empty(size, dtype=torch.int32, device=chosen.device) for size in (padded, -(-padded // block_m), 1, buckets + 1)
    )
    blocks = SlotBlocks(ids, of_block, rows)

    def run() -> SlotBlocks:
        alignment.moe_align_block_size(chosen, buckets, block_m, *blocks, sums, True)
        return blocks

    if not torch.equal(run().slots(block_m), sorted_blocks(call, block_m).slots(block_m)):
        raise RuntimeError(f"SGLang's blocks of {block_m} rows are not those of the call")
    return run
