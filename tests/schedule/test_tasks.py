"""The order of tasks and tiles on the host: every task once, tiles as in the grouped order, and kinds one after another."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_properties import GemmPlan

from megamoe_dsl.schedule import GroupedOrder, HostTable, Scheduler, Task, TaskKind, TaskOrder


@settings(max_examples=200)
@given(
    st.sampled_from((8, 64, 128)),
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 9),
)
def test_tasks_surround_the_tiles_of_the_grouped_order(block_m: int, counts: list[int], before: int, after: int, ctas: int) -> None:
    plan, table = GemmPlan(block_m, 3, 2, len(counts)), HostTable.of(counts, block_m)
    order = TaskOrder(plan, table, before, after)
    lists = [list(Scheduler.blocks(order, cta, ctas)) for cta in range(ctas)]
    tasks: list[Task] = [lists[number % ctas][number // ctas] for number in range(sum(map(len, lists)))]
    tiles = list(Scheduler.blocks(GroupedOrder(plan, table)))
    assert [task.kind for task in tasks] == before * [TaskKind.BEFORE] + len(tiles) * [TaskKind.TILE] + after * [TaskKind.AFTER]
    assert [task.block for task in tasks if task.kind == TaskKind.TILE] == tiles
    for kind, count in ((TaskKind.BEFORE, before), (TaskKind.AFTER, after)):
        assert [task.index for task in tasks if task.kind == kind] == list(range(count))


def test_the_walk_ends_where_it_says_how_many_there_were() -> None:
    """A position past the last task has the number of all of them before it, by which the counter is set back."""
    order = TaskOrder(GemmPlan(64, 2, 1, 2), HostTable.of((65, 0), 64), 3, 4)
    end = Scheduler.start(order, 30, 1).advance_to_valid()
    assert not end.valid() and 30 - end.local == 3 + 2 * 2 + 4
