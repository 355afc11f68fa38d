"""Small kernels in CuTe DSL for tests of `sim.run`."""

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import T

THREADS = 64


@cute.kernel
def _scale(a: cute.Tensor, b: cute.Tensor, factor: cutlass.Float32, offset: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(a):
        b[i] = (a[i] * factor + offset).to(b.element_type)


@cute.jit
def scale(a: cute.Tensor, b: cute.Tensor, factor: cutlass.Float32, offset: cutlass.Constexpr):
    """b = a * factor + offset"""
    _scale(a, b, factor, offset).launch(grid=(cute.ceil_div(cute.size(a), THREADS), 1, 1), block=(THREADS, 1, 1))


@cute.jit
def scale_twice(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, factor: cutlass.Float32):
    """c = (a * factor + 1) * factor in two launches"""
    scale(a, b, factor, 1.0)
    scale(b, c, factor, 0.0)


@cute.kernel
def _count_up(a: cute.Tensor, waits: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    cute.arch.griddepcontrol_launch_dependents()
    if cutlass.const_expr(waits):
        cute.arch.griddepcontrol_wait()
    a[thread] = a[thread] + 1


@cute.jit
def count_up(a: cute.Tensor, waits: cutlass.Constexpr):
    """a = a + 3 in three launches, each of which begins while the one before it runs"""
    for _ in cutlass.range_constexpr(3):
        _count_up(a, waits).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), use_pdl=True)


@cute.kernel
def _reverse(a: cute.Tensor, barrier: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    value = a[THREADS - 1 - thread]
    if cutlass.const_expr(barrier):
        cute.arch.barrier()
    a[thread] = value


@cute.jit
def reverse(a: cute.Tensor, barrier: cutlass.Constexpr):
    """Reverse an array in place; without the barrier two warps race."""
    _reverse(a, barrier).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def _reverse_often(a: cute.Tensor, times: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    for _ in cutlass.range_constexpr(times):
        mirrored = a[THREADS - 1 - thread]
        a[thread] = mirrored
        cute.arch.barrier()


@cute.jit
def reverse_often(a: cute.Tensor, times: cutlass.Constexpr):
    """Reversals in an unrolled loop, without the barrier between load and store."""
    _reverse_often(a, times).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def _tile_copy(load: cute.CopyAtom, source: cute.Tensor, target: cute.Tensor, smem_layout: cute.Layout, tile: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    memory = cutlass.memory.SmemAllocator()
    staged = memory.allocate_tensor(cutlass.Float32, smem_layout, 128)
    barrier = memory.allocate_array(cutlass.Int64)
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    tiles = cute.local_tile(source, tile, (0, 0))
    to, of = cpasync.tma_partition(load, 0, cute.make_layout(1), cute.group_modes(staged, 0, 2), cute.group_modes(tiles, 0, 2))
    if thread < 32:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, tile[0] * tile[1] * 4)
        cute.copy(load, of, to, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    row, column = thread // tile[1], thread % tile[1]
    target[row, column] = staged[row, column]


@cute.jit
def tile_copy(source: cute.Tensor, target: cute.Tensor, tile: cutlass.Constexpr):
    """The first tile of a matrix through a tensor map, shared memory and plain stores."""
    layout = cute.make_ordered_layout(tile, order=(1, 0))
    load, coordinates = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), source, layout, tile)
    _tile_copy(load, coordinates, target, layout, tile).launch(grid=(1, 1, 1), block=(tile[0] * tile[1], 1, 1))


@cute.kernel
def _to_peer(peers: cute.Tensor, rank: cutlass.Int32, ranks: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    address = peers[(rank + 1) % ranks]
    place = cute.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    cute.make_tensor(place, cute.make_layout(32))[thread] = 100 * rank + thread


@cute.jit
def to_peer(peers: cute.Tensor, rank: cutlass.Int32, ranks: cutlass.Constexpr):
    """Every rank writes into the next rank's buffer; `peers` holds their addresses."""
    _to_peer(peers, rank, ranks).launch(grid=(1, 1, 1), block=(32, 1, 1))


@cute.kernel
def _arrivals(counter: cute.Tensor, order: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread % 32 == 0:
        order[thread // 32] = cute.arch.atomic_add(counter.iterator, cutlass.Int32(1))


@cute.jit
def arrivals(counter: cute.Tensor, order: cute.Tensor):
    """Eight warps note in which order they came: no race, and another result under another schedule."""
    _arrivals(counter, order).launch(grid=(1, 1, 1), block=(256, 1, 1))


@cute.kernel
def _video(a: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    text = "vadd.s32.u32.u32 $0, $1, $1;"
    a[thread] = cutlass.Int32(llvm.inline_asm(T.i32(), [a[thread].ir_value()], text, "=r,r", has_side_effects=True))


@cute.jit
def video(a: cute.Tensor):
    """An instruction that the simulator does not know."""
    _video(a).launch(grid=(1, 1, 1), block=(32, 1, 1))
