"""A pipeline stage that is freed too early: sums are right on most days, and wrong when loads take their time.

One warp fills the stage, another reads it: all 32 lanes load, the warp synchronizes, one lane arrives at the empty barrier, and only then
the values are used. A warp barrier orders what lanes have read, but a load whose value is unused may still be in flight, and the stage's
next values overtake it. The race detector finds this in any schedule; with late loads some schedules give wrong sums as well. In the
mended kernel every lane arrives for itself, so its value is there before it arrives.
"""

import cutlass
import cutlass.cute as cute
import torch

from megamoe_dsl import sim

STEPS = 8


@cute.kernel
def sum_steps_kernel(x: cute.Tensor, sums: cute.Tensor, mended: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    memory = cutlass.memory.SmemAllocator()
    stage = memory.allocate_tensor(cutlass.Float32, cute.make_layout(32), 16)
    barriers = memory.allocate_array(cutlass.Int64, 2)
    full, empty = barriers, barriers + 1
    if thread == 0:
        cute.arch.mbarrier_init(full, 32)
        cute.arch.mbarrier_init(empty, 32 if mended else 1)
    cute.arch.barrier()
    lane = thread % 32
    if thread < 32:
        for step in range(STEPS):
            cute.arch.mbarrier_wait(empty, (step + 1) % 2)
            stage[lane] = x[step, lane]
            cute.arch.mbarrier_arrive(full)
    else:
        total = cutlass.Float32(0)
        for step in range(STEPS):
            cute.arch.mbarrier_wait(full, step % 2)
            value = stage[31 - lane]
            if cutlass.const_expr(mended):
                cute.arch.mbarrier_arrive(empty)
            else:
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(empty)
            cute.arch.sync_warp()
            total += value
        sums[31 - lane] = total


@cute.jit
def sum_steps(x: cute.Tensor, sums: cute.Tensor, mended: cutlass.Constexpr):
    sum_steps_kernel(x, sums, mended).launch(grid=(1, 1, 1), block=(64, 1, 1))


x = torch.arange(STEPS * 32).view(STEPS, 32).float()
for mended in (False, True):
    for late in (False, True):
        right = []
        for seed in range(12 if late and not mended else 2):  # a late value needs the schedule for it
            sums = torch.zeros(32)
            assumptions = sim.Assumptions(late_loads=late)
            report = sim.run(sum_steps, x, sums, mended, arch="sm_90a", outputs=[sums], seed=seed, assumptions=assumptions)
            right.append(int((sums == x.sum(dim=0)).sum()))
            assert bool(report.findings) != mended
        who, how = "every lane" if mended else "one lane", "late" if late else "at once"
        print(f"{who} frees the stage, loads {how}: right sums of 32, seed by seed: {right}; {len(report.findings)} findings")
        assert (min(right) == 32) == (mended or not late)
