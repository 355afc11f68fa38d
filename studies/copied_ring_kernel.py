"""Device code of the ring that one warp fills and another reads (copied_ring.py)."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from copied_ring import COPIED, DEPTH, EMPTY, FULL, LANES, STORED, CopiedRing, CopiedRingArguments, CopiedRingConfig
from megamoe_dsl.blocks.setup import shared_memory
from megamoe_dsl.device.copy_async import arrive_when_copied, copy_word
from megamoe_dsl.device.launch import launch
from megamoe_dsl.device.mbarrier import arrive, fence_init, init, release
from megamoe_dsl.device.memory import load_shared_u32, load_u32, store_shared_u32, store_u32
from megamoe_dsl.device.ptx import emit
from megamoe_dsl.device.stage import Stage, release_stage
from megamoe_dsl.device.warp import sync_warp


def wait_late(ring: CopiedRing, stage: Stage) -> None:
    """The mistake of a writer: it waits once it has written."""
    if ring.late == EMPTY:
        stage.wait_empty()


@cute.jit
def arrive_full(ring: cutlass.Constexpr[CopiedRing], stage: Stage, lane: Int32):
    """The lane's, or one lane's for all."""
    if cutlass.const_expr(ring.one_lane == FULL):
        sync_warp()
        if lane == 0:
            arrive(stage.full)
    else:
        arrive(stage.full)


@cute.jit
def fill_ring(config: cutlass.Constexpr[CopiedRingConfig], args: CopiedRingArguments, smem: Int32, lane: Int32):
    ring = config.problem
    stage = Stage.first(config.region, smem, DEPTH)
    for turn in cutlass.range(args.turns, unroll=1):
        if cutlass.const_expr(ring.late != EMPTY):
            stage.wait_empty()
        source, place = args.x + Int64(turn * LANES + lane) * 4, stage.shared("sfa") + lane * 4
        if cutlass.const_expr(ring.fill == STORED):
            store_shared_u32(place, load_u32(source))
            wait_late(ring, stage)
            arrive_full(ring, stage, lane)
        else:
            copy_word(place, source, Int32(4))
            wait_late(ring, stage)
            if cutlass.const_expr(ring.fill == COPIED):
                arrive_when_copied(stage.full)
            else:
                emit("cp.async.wait_all;")
                arrive_full(ring, stage, lane)
        stage = stage.next()


@cute.jit
def read_ring(config: cutlass.Constexpr[CopiedRingConfig], args: CopiedRingArguments, smem: Int32, lane: Int32):
    ring = config.problem
    stage = Stage.first(config.region, smem, DEPTH)
    for turn in cutlass.range(args.turns, unroll=1):
        if cutlass.const_expr(ring.late != FULL):
            stage.wait_full()
        word = load_shared_u32(stage.shared("sfa") + (lane ^ 1) * 4)
        if cutlass.const_expr(ring.late == FULL):
            stage.wait_full()
        if cutlass.const_expr(ring.one_lane == EMPTY):
            # The stores below need the words: they have arrived in their registers.
            store_u32(args.y + Int64(turn * LANES + lane) * 4, word)
            sync_warp()
            release_stage(stage, lane)
        else:
            release(stage.empty, word)
            store_u32(args.y + Int64(turn * LANES + lane) * 4, word)
        stage = stage.next()


def arrivals(config: CopiedRingConfig, barrier: str) -> int:
    """That complete a phase."""
    return 1 if config.problem.one_lane == barrier else LANES


@cute.kernel
def ring_kernel(config: cutlass.Constexpr[CopiedRingConfig], args: CopiedRingArguments):
    thread = Int32(cute.arch.thread_idx()[0])
    smem = shared_memory(config.region)
    store_shared_u32(config.region.address(smem, "sfa") + thread * 4, 0)  # what is read too early is a race, and no fault of its own
    if thread == 0:
        for i in cutlass.range_constexpr(DEPTH):
            init(config.region.address(smem, "full_barrier", i), arrivals(config, FULL))
            init(config.region.address(smem, "empty_barrier", i), arrivals(config, EMPTY))
        fence_init()
    cute.arch.sync_threads()
    if thread < LANES:
        fill_ring(config, args, smem, thread)
    else:
        read_ring(config, args, smem, thread - LANES)


@cute.jit
def launch_ring(config: cutlass.Constexpr[CopiedRingConfig], args: CopiedRingArguments, stream: Any):
    launch(ring_kernel(config, args), config, stream)
