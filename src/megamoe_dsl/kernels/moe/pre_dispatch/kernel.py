"""The inputs stage: tokens and top-k routing into the symmetric buffer, in one launch.  BF16 tokens become E4M3 or E2M1 with scales on the
way; those that are quantized already are copied.

waits: nothing; signals: nothing, the mega kernel follows on the same stream.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..arguments import PreDispatchArguments
from .config import THREADS, PreDispatchConfig
from .inputs import chunks_of_token, copy_chunk, copy_routing, fill_routing, quantize_chunk

WARPS = THREADS // 32


@cute.kernel
def pre_dispatch_kernel(config: cutlass.Constexpr[PreDispatchConfig], args: PreDispatchArguments):
    """One CTA: its warps stride over the chunks of all tokens, then its threads over the top-k slots, padding included."""
    thread, cta = Int32(cute.arch.thread_idx()[0]), Int32(cute.arch.block_idx()[0])
    chunks = args.num_tokens * chunks_of_token(config)
    for chunk in cutlass.range(cta * WARPS + (thread >> 5), chunks, config.num_sms * WARPS, unroll=1):
        if cutlass.const_expr(config.quantized):
            copy_chunk(config, args, chunk, thread & 31)
        else:
            quantize_chunk(config, args, chunk, thread & 31)
    slots = args.padded_tokens * config.problem.topk
    for slot in cutlass.range(cta * THREADS + thread, slots, config.num_sms * THREADS, unroll=1):
        if cutlass.const_expr(config.shared):
            fill_routing(config, args, slot)
        else:
            copy_routing(config, args, slot)
