"""Addresses that lie beyond 32 bits, from a kernel that computes nothing else, in the simulator."""

import os
from typing import Any

import torch

from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from ptx_of import ptx_of

PIECE_BYTES, BASE = 2048, 1 << 40


def test_a_piece_of_y_beyond_two_gibibytes() -> None:
    """Lane i asks for piece i * 2^17."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
    import cutlass.cute as cute
    from cutlass import Int32, Int64

    from megamoe_dsl.device.memory import store_u64
    from megamoe_dsl.kernels.moe.combine import piece_address

    @cute.kernel
    def kernel(y: Int64, out: Int64):
        lane: Any = Int32(cute.arch.thread_idx()[0])
        store_u64(out + Int64(lane) * 8, piece_address(y, lane * (1 << 17), PIECE_BYTES))

    @cute.jit
    def launch(y: Int64, out: Int64):
        kernel(y, out).launch(grid=(1, 1, 1), block=(32, 1, 1))

    memory, out = GlobalMemory(), torch.zeros(32, dtype=torch.int64)
    memory.add(out, name="out", initialized=False)
    Simulator(ptx_of(launch, Int64(0), Int64(0)), memory).run([Launch((1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (BASE, out.data_ptr()))])
    assert out.tolist() == [BASE + (lane << 17) * PIECE_BYTES for lane in range(32)]
