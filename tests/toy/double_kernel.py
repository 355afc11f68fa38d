"""Device code of the toy family: y = 2 x, a word a thread."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from double import DoubleArguments, DoubleConfig

from megamoe_dsl.device.memory import load_u32, store_u32


@cute.kernel
def double_kernel(config: cutlass.Constexpr[DoubleConfig], args: DoubleArguments):
    index = Int32(cute.arch.block_idx()[0]) * config.num_threads + cute.arch.thread_idx()[0]
    if index < args.count:
        store_u32(args.y + Int64(index) * 4, load_u32(args.x + Int64(index) * 4) * 2)
