"""A kernel whose warps mostly run at one pace, which hides its mistake: the simulator names the two lines that nothing orders.

Four warps add up rows of a matrix. Each leaves its part in shared memory, and after a barrier all of them add the parts. Nothing keeps
a fast warp from overwriting its part with that of the next row while a slow one still reads: a second barrier is missing.
"""

import cutlass
import cutlass.cute as cute
import torch

from megamoe_dsl import sim

THREADS, WARPS = 128, 4


@cute.kernel
def row_sums_kernel(x: cute.Tensor, sums: cute.Tensor, mended: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    warp = thread // 32
    parts = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(WARPS), 16)
    for row in range(x.shape[0]):
        part = cute.arch.warp_reduction_sum(x[row, thread])
        if thread % 32 == 0:
            parts[warp] = part
        cute.arch.barrier()
        total = parts[0] + parts[1] + parts[2] + parts[3]
        if thread == 0:
            sums[row] = total
        if cutlass.const_expr(mended):
            cute.arch.barrier()


@cute.jit
def row_sums(x: cute.Tensor, sums: cute.Tensor, mended: cutlass.Constexpr):
    row_sums_kernel(x, sums, mended).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


x = torch.randint(-8, 9, (16, THREADS)).float()
for mended in (False, True):
    sums = torch.zeros(16)
    report = sim.run(row_sums, x, sums, mended, arch="sm_90a", outputs=[sums])
    right = int((sums == x.sum(dim=1)).sum())
    print(f"{'two barriers' if mended else 'one barrier'}: {right} of {len(sums)} sums are right; {report}")
    assert bool(report.findings) != mended and (right == len(sums) or not mended)
