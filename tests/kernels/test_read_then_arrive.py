"""A mistake that others made on GPUs: a warp reads a word, meets at a warp barrier, and one lane arrives for all; the word is overwritten
before some lane has it.  The authors of *AsteroMoE: A Faster MoE Kernel for Blackwell* describe it, and the barrier that mends it."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Int32

from megamoe_dsl import sim
from megamoe_dsl.device.mbarrier import arrive, fence_init, init, wait
from megamoe_dsl.device.memory import load_shared_u32, store_shared_u32
from megamoe_dsl.device.warp import elect, named_barrier, smem_base, sync_warp

TURNS = 6
FULL, EMPTY, WORD = 0, 8, 16  # bytes


@cute.kernel
def hand_over_kernel(x: cute.Tensor, seen: cute.Tensor, mended: cutlass.Constexpr):
    """Warp 1 hands the elements of x to warp 0, one at a time, in one word of shared memory."""
    thread, _, _ = cute.arch.thread_idx()
    smem = smem_base(cutlass.Array(cutlass.Int8, 32, space=cutlass.AddressSpace.smem, alignment=16))
    if thread == 0:
        init(smem + FULL, 1)
        init(smem + EMPTY, 1)
        fence_init()
    cute.arch.barrier()
    for turn in range(TURNS):
        if thread < 32:
            wait(smem + FULL, Int32(turn & 1))
            word = Int32(load_shared_u32(smem + WORD))
            if cutlass.const_expr(mended):
                named_barrier(1, 32)
            else:
                sync_warp()
            if elect():
                arrive(smem + EMPTY)
            seen[turn, thread] = word
        else:
            wait(smem + EMPTY, Int32((turn & 1) ^ 1))
            if elect():
                store_shared_u32(smem + WORD, x[turn])
                arrive(smem + FULL)


@cute.jit
def hand_over(x: cute.Tensor, seen: cute.Tensor, mended: cutlass.Constexpr):
    hand_over_kernel(x, seen, mended).launch(grid=(1, 1, 1), block=(64, 1, 1))


def run(arch: str, mended: bool) -> tuple[sim.Report, bool]:
    """The report, and whether every lane has seen every word."""
    x, seen = torch.arange(1, TURNS + 1, dtype=torch.int32), torch.zeros(TURNS, 32, dtype=torch.int32)
    report = sim.run(hand_over, x, seen, mended, arch=arch, outputs=[seen])
    return report, torch.equal(seen, x[:, None].expand_as(seen))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_mistake_is_a_race_and_the_mended_kernel_has_none(arch: str) -> None:
    found, _ = run(arch, mended=False)
    assert [one.kind for one in found.by_source()] == ["WAR race"]
    fine, right = run(arch, mended=True)
    assert fine.findings == [] and right
