"""Launches of the ranks that are left end when their hosts play a lost rank's part, in the simulator, with the kernel as it is; and a rank
that is killed in a group of processes is named by the others, which go on in a new group."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mega_moe_runs import inputs

from forked import forked_process
from megamoe_dsl import Target, choose
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.layouts.smem_plan import ONE_REPORT, RankBarrier
from megamoe_dsl.problem import Problem
from megamoe_dsl.runtime import lost_ranks, symmetric_memory
from megamoe_dsl.runtime.lost_ranks import STATE, Understudy, Waiting, end_or_lose
from megamoe_dsl.runtime.simulated import SimulatedMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.runtime.watchdog import WatchdogError
from ptx_of import artifact

RANKS, LOST = 3, 1
PROBLEM = Problem(256, 128, 6, 2, RANKS, 8, recipe="fp8xfp8", activation_clamp=10.0)
LEFT = [rank for rank in range(RANKS) if rank != LOST]
STILL = 100
"""Steps of the simulator without a change, after which a host plays."""


def words(epoch: int, signals: int, reports: Sequence[int], seen: int = 0) -> dict[str, torch.Tensor]:
    """State of a rank with so many arrivals in all, and reports to each expert in this launch, of five tokens each."""
    sums = torch.tensor([seen + report * (ONE_REPORT + 5) for report in reports])
    epochs, arrived = torch.tensor([epoch], dtype=torch.int32), torch.tensor([0, signals], dtype=torch.int32)
    return dict(zip(STATE, (epochs, arrived, sums, torch.full((len(reports),), seen)), strict=True))


@pytest.mark.parametrize(
    ("state", "lost", "counts", "signals", "phase"),
    [
        (words(0, 0, [2, 2]), 1, [1, 1], 0, "dispatch"),
        (words(7, 21, [3, 2], seen=9 * ONE_REPORT + 77), 1, [0, 1], 0, "dispatch"),
        (words(7, 21, [1, 1]), 1, [0, 0], 0, ""),  # two are waited for, and one is lost
        (words(7, 21, [1, 1]), 2, [2, 2], 0, "dispatch"),
        (words(7, 23, [3, 3]), 1, [0, 0], 1, "combine"),
        (words(7, 23, [3, 3]), 2, [0, 0], 1, "combine"),  # one of the two had told before it was lost
        (words(7, 22, [3, 3]), 1, [0, 0], 0, ""),
        (words(7, 24, [0, 0]), 2, [0, 0], 0, ""),  # between launches
        (words(7, 21, [0, 0]), 2, [0, 0], 0, ""),
        (words((1 << 31) // 3, -3, [3, 3]), 1, [0, 0], 0, ""),
        (words((1 << 31) // 3, -1 << 31, [3, 3]), 1, [0, 0], 1, "combine"),  # of 2^31 + 1
    ],
)
def test_what_a_launch_lacks_of_lost_ranks(state: dict[str, torch.Tensor], lost: int, counts: list[int], signals: int, phase: str) -> None:
    found = Waiting.of(state, RANKS, lost)
    assert (found.counts.tolist(), found.signals, found.phase) == (counts, signals, phase)


@dataclass
class PlainMemory:
    """A rank's buffer of which only what ranks count is there."""

    fields: dict[str, torch.Tensor]

    def view(self, name: str) -> torch.Tensor:
        return self.fields[name]


def test_a_rank_that_was_lost_on_its_way_has_counted_for_those_it_reached() -> None:
    counts = torch.arange(1, 7).view(RANKS, 2)
    memory = PlainMemory({**words(7, 21, [3, 2]), "expert_recv_count": counts.clone()})
    assert Understudy(memory, RANKS).play([LOST]) == "dispatch"
    counts[LOST, 1] = 0
    assert torch.equal(memory.view("expert_recv_count"), counts)
    assert memory.view("expert_recv_count_sum").tolist() == [3 * (ONE_REPORT + 5), 2 * (ONE_REPORT + 5) + ONE_REPORT]


def test_two_lost_ranks_have_both_their_parts() -> None:
    """At each of the two waits; what live ranks write stays."""
    lost, counts = [0, 3], torch.arange(1, 11).view(5, 2)
    memory = PlainMemory({**words(7, 40, [3, 4]), "expert_recv_count": counts.clone()})
    assert Understudy(memory, 5).play(lost) == "dispatch"
    counts[lost, 0] = 0
    assert torch.equal(memory.view("expert_recv_count"), counts)
    assert memory.view("expert_recv_count_sum").tolist() == [3 * (ONE_REPORT + 5) + 2 * ONE_REPORT, 4 * (ONE_REPORT + 5)]
    memory.fields |= words(7, 38, [5, 5])
    memory.view("rank_signal")[0] = 9
    assert Understudy(memory, 5).play(lost) == "combine"
    assert memory.view("rank_signal").tolist() == [9, 40] and memory.view("expert_recv_count_sum").tolist() == [5 * (ONE_REPORT + 5)] * 2
    assert Understudy(memory, 5).play(lost) == "" and memory.view("rank_signal").tolist() == [9, 40]


def launch_without(moe: SimulatedMoE, case: Case) -> tuple[list[torch.Tensor], list[tuple[int, str]]]:
    """One launch of the ranks that are left: y of all, and what was played on which rank, in order."""
    played: list[tuple[int, str]] = []
    hosts = {rank: Understudy(moe.ranks[rank], RANKS) for rank in LEFT}
    still, before = dict.fromkeys(LEFT, 0), dict.fromkeys(LEFT, b"")

    def tick(*_: object) -> None:
        for rank, host in hosts.items():
            now = b"".join(one.numpy().tobytes() for one in host.look().values())
            still[rank] = still[rank] + 1 if now == before[rank] else 0
            before[rank] = now
            if still[rank] == STILL and (phase := host.play([LOST])):
                played.append((rank, phase))

    simulator = moe.simulator
    whole = simulator.run
    simulator.progress = tick
    simulator.run = lambda launches: whole([one for one in launches if one.rank != LOST])  # type: ignore[method-assign]
    try:
        y, _ = moe(inputs(case))
    finally:
        del simulator.run  # type: ignore[attr-defined]
        simulator.progress = None
    return y, played


def test_launches_end_and_results_without_the_lost_rank_are_right() -> None:
    """Twice in a row, after a launch of all ranks; tokens whose experts are on ranks that are left have the reference's bits."""
    case = random_case(PROBLEM, (8, 5, 6), 3)
    moe = SimulatedMoE(artifact(choose(PROBLEM, Target.typical("sm_90a", 2), 8)), case.weights, race=False)
    wanted, on_lost = case.reference().y, range(LOST * PROBLEM.experts_per_rank, (LOST + 1) * PROBLEM.experts_per_rank)
    y, _ = moe(inputs(case))
    assert all(torch.equal(y[rank], wanted[rank]) for rank in range(RANKS))
    for _ in range(2):
        y, played = launch_without(moe, case)
        assert sorted(played) == [(rank, phase) for rank in LEFT for phase in ("combine", "dispatch")]
        for rank in LEFT:
            own = torch.tensor([not set(row) & set(on_lost) for row in case.topk_idx[rank].tolist()])
            assert own.any() and torch.equal(y[rank][own], wanted[rank][own])
    for rank in LEFT:
        memory = moe.ranks[rank]
        assert int(memory.view("launch_epoch")) == 3 and int(memory.view("rank_signal")[RankBarrier.BEFORE_COMBINE]) == 3 * RANKS
        assert torch.equal(memory.view("expert_recv_count_sum"), memory.view("expert_counts_seen"))
        assert not memory.view("expert_recv_count")[LOST].any()


class WaitingMemory:
    """A rank's workspace as it is when a launch waits at the barrier before combine, and the launch, which ends when all have arrived."""

    def __init__(self, ranks: int = RANKS) -> None:
        self.ranks = ranks
        self.fields = words(4, 5 * ranks - 1, [ranks, ranks]) | {"expert_recv_count": torch.ones(ranks, 2, dtype=torch.int64)}

    def view(self, name: str) -> torch.Tensor:
        return self.fields[name]

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return int(self.fields["rank_signal"][RankBarrier.BEFORE_COMBINE]) == 5 * self.ranks


PROCESSES = 8
SURVIVORS = [rank for rank in range(PROCESSES) if rank != LOST]


def test_the_first_phase_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that lack ranks in one phase after another, until they end."""
    monkeypatch.setattr(lost_ranks, "STILL_S", 0.0)
    phases = ["", "dispatch", "combine", ""]
    host = Understudy(WaitingMemory(), RANKS)
    monkeypatch.setattr(host, "play", lambda lost: phases.pop(0))
    assert host.end_launches([LOST], lambda: not phases) == "dispatch"


def test_parts_are_played_when_nothing_has_changed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are left may be at work for two seconds."""
    now, memory, played = [0.0], WaitingMemory(), []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] < 2:
            memory.view("expert_counts_seen").add_(1)

    monkeypatch.setattr(lost_ranks, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    host = Understudy(memory, RANKS)
    monkeypatch.setattr(host, "play", lambda lost: played.append((now[0], lost)))
    host.end_launches([LOST], lambda: len(played) == 2)
    (first, lost), (second, _) = played
    assert lost == [LOST] and 2.4 < first < 2.6 and 0.5 < second - first < 0.6


@pytest.mark.parametrize(
    ("ends", "silent", "told"),
    [
        (True, [LOST], None),
        (False, None, None),
        (False, [], None),
        (False, [0, 2], "rank 1, combine: calls took more than 0.05 s; rank 0, 2 did not report a wait within 5 s: taken for lost"),
    ],
)
def test_only_known_ranks_are_lost(ends: bool, silent: list[int] | None, told: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is asked about a call that ends in time."""
    queries, played = iter([False, False, True] if ends else [False] * 99), []
    event = SimpleNamespace(record=lambda: None, query=lambda: next(queries))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    symmetric: Any = SimpleNamespace(rank=1, silent_ranks=lambda: pytest.fail("asked") if ends else silent)
    host: Any = SimpleNamespace(end_launches=lambda lost, done: played.append((lost, done)) or "combine")
    if told is None:
        end_or_lose(host, symmetric, 30.0 if ends else 0.05)
        assert not played
        return
    with pytest.raises(WatchdogError, match=told):
        end_or_lose(host, symmetric, 0.05)
    assert played == [(silent, event.query)]


def work(rank: int, folder: Path) -> None:
    """A rank of a group, of which one is killed; the others write what they were told, and the sum of their numbers in a new group."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {"backend": "gloo", "timeout": timedelta(seconds=60)}
    dist.init_process_group(store=dist.FileStore(str(folder / "store"), PROCESSES), rank=rank, world_size=PROCESSES, **options)
    dist.barrier()
    if rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    lost_ranks.STILL_S = 0.05
    waits = symmetric_memory.silent_ranks
    symmetric_memory.silent_ranks = lambda *given: waits(*given, grace_s=2.0)
    memory = WaitingMemory(PROCESSES)
    torch.cuda.Event = lambda: memory  # type: ignore[assignment, misc]
    symmetric: Any = SimpleNamespace(problem=SimpleNamespace(num_ranks=PROCESSES), rank=rank, group=dist.group.WORLD)
    symmetric.silent_ranks = lambda: SymmetricBuffer.silent_ranks(symmetric)
    try:
        end_or_lose(Understudy(memory, PROCESSES), symmetric, 0.1)
        told = "nothing"
    except WatchdogError as error:
        told = str(error)
    dist.destroy_process_group()
    dist.init_process_group(
        store=dist.FileStore(str(folder / "left"), len(SURVIVORS)), rank=SURVIVORS.index(rank), world_size=len(SURVIVORS), **options
    )
    total = torch.tensor([rank])
    dist.all_reduce(total)
    (folder / f"{rank}.txt").write_text(f"{told}\n{int(total)}")
    os._exit(0)


def test_a_killed_rank_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    processes = [forked_process(work, (rank, tmp_path)) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL if rank == LOST else 0 for rank in range(PROCESSES)]
    for rank in SURVIVORS:
        told, total = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert told == f"rank {rank}, combine: calls took more than 0.1 s; rank {LOST} did not report a wait within 5 s: taken for lost"
        assert int(total) == sum(SURVIVORS)
