"""The scheduler warp: numbers from the launch's counter to tasks of this CTA, tiles for its loaders and math warps, and the rest for its
communication warps.

waits     work_tile_empty, task_empty
signals   work_tile_full, task_full
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blocks.walk import Walk, advance_to_valid
from ...device.memory import load_u32, store_shared_v2
from ...device.tile_queue import TileQueue, fetch_numbers, publish, read_tile
from ...device.warp import inclusive_sum, shuffle, sync_warp
from ...schedule import Task, TaskKind, TaskOrder
from ..gemm.config import GemmConfig
from ..gemm.context import GemmContext
from ..gemm.group_table import GroupTable
from ..gemm.tile_scheduler import reset_counter
from ..gemm.work_tile import ALONE, LAST
from .context import EpContext
from .layouts.pool import padded_rows


@dataclass(frozen=True)
class TasksBefore(TaskOrder):
    """The order of a kernel whose tasks all come before its tiles: the DSL is told which fields are compile-time."""

    config: cutlass.Constexpr[GemmConfig]
    table: GroupTable
    before: Int32
    after: cutlass.Constexpr[int]

    @classmethod
    def of(cls, config: GemmConfig, table: GroupTable, tasks: Any) -> TasksBefore:
        """With so many tasks."""
        return cls(config, table, tasks, 0)


@dataclass(frozen=True)
class TasksAfter(TaskOrder):
    """That of a kernel whose tasks all come after its tiles."""

    config: cutlass.Constexpr[GemmConfig]
    table: GroupTable
    before: cutlass.Constexpr[int]
    after: Int32

    @classmethod
    def of(cls, config: GemmConfig, table: GroupTable, tasks: Any) -> TasksAfter:
        """With so many tasks."""
        return cls(config, table, 0, tasks)


@dataclass(frozen=True)
class CommunicationTask:
    """What the communication warps of a CTA do next: task `index` of its kind, or nothing any more."""

    kind: Int32
    index: Int32
    more: Int32

    def valid(self) -> Any:
        """Whether it is a task, not the end."""
        return self.more > 0


@cute.jit
def fill_table(ctx: EpContext, gemm: GemmContext):
    """(rows, first row) of each local expert, and an entry without rows; lane l for experts l, l + 32, ..."""
    local, lane = ctx.config.problem.experts_per_rank, cute.arch.lane_idx()
    before = Int32(0)  # rows of all experts of earlier rounds
    for base in cutlass.range_constexpr(0, local + 1, 32):
        expert = lane + base
        rows = Int32(0)
        if expert < local:
            rows = load_u32(ctx.at("expert_rows", expert))
        padded = padded_rows(rows)
        upto = inclusive_sum(padded)
        if expert <= local:
            store_shared_v2(gemm.shared("group_table", expert), rows, before + upto - padded)
        before = before + shuffle(upto, 31)
    sync_warp()


@cute.jit
def schedule_tasks(ctx: EpContext, gemm: GemmContext, order: TasksBefore | TasksAfter):
    """The first task of a CTA has its number; the others come from the counter.  Who works on what comes first is told of its end as soon
    as the CTA has a number of what comes after: no higher one is for it."""
    tasks_first = isinstance(order, TasksBefore)
    walk = advance_to_valid(Walk.start(order, ctx.sm, ctx.num_sms, Int32))
    tiles, tasks, number, more = gemm.first_tile, ctx.first_task, ctx.sm, Int32(1)
    while walk.valid():
        task = walk.block()
        if task.kind == int(TaskKind.TILE):
            if cutlass.const_expr(tasks_first):
                if more != 0:
                    tasks, more = end_tasks(tasks), Int32(0)
            tiles = publish_tile(gemm, task, tiles)
        else:
            if cutlass.const_expr(not tasks_first):
                if more != 0:
                    tiles, more = end_tiles(tiles), Int32(0)
            tasks = publish_task(task, tasks)
        fetched = fetch_numbers(gemm.args.counter, 1) + ctx.num_sms
        walk, number = advance_to_valid(walk.forward(fetched - number)), fetched
        if walk.valid() == 0:
            reset_counter(gemm, number, number - walk.local)
    if (more != 0) | (not tasks_first):
        end_tasks(tasks)
    if (more != 0) | tasks_first:
        end_tiles(tiles)


@cute.jit
def publish_tile(gemm: GemmContext, task: Task, queue: TileQueue):
    """A tile for the loaders and math warps of this CTA.  The queue's next place."""
    block = task.block
    row = expert_table(gemm).first_row(block.expert) + block.m_block * gemm.config.block_m
    queue.wait_empty()
    publish(queue, lambda cta: (block.expert * 4 + ALONE, block.n_block, row, block.valid_m))
    return queue.next()


def expert_table(gemm: GemmContext) -> GroupTable:
    """Where each expert's rows lie."""
    return GroupTable(gemm.shared("group_table"))


@cute.jit
def end_tiles(queue: TileQueue):
    """No tile follows."""
    queue.wait_empty()
    publish(queue, lambda cta: (Int32(0), Int32(LAST), Int32(0), Int32(0)))
    return queue.next()


@cute.jit
def publish_task(task: Task, queue: TileQueue):
    """A task for the communication warps of this CTA.  The queue's next place."""
    queue.wait_empty()
    publish(queue, lambda cta: (task.kind, task.index, Int32(1), Int32(0)))
    return queue.next()


@cute.jit
def end_tasks(queue: TileQueue):
    """No task follows."""
    queue.wait_empty()
    publish(queue, lambda cta: (Int32(0), Int32(0), Int32(0), Int32(0)))
    return queue.next()


@cute.jit
def next_task(queue: TileQueue) -> tuple[CommunicationTask, TileQueue]:
    """A communication warp: its next task, and the place of the one after it."""
    (kind, index, more, _), following = read_tile(queue, (0, 1, 2))
    return CommunicationTask(kind, index, more), following
