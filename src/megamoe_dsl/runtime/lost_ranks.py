"""Ends launches of the fused kernel that wait for lost ranks without a trap, after which a process could not use its GPU again.

A launch waits for other ranks twice: for token counts of every rank, and at the barrier before combine.  After too long a wait the host
writes into its own symmetric buffer what the lost ranks would have written, so that the launch ends with undefined results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..kernels.moe.layouts.smem_plan import ONE_REPORT, RankBarrier
from .buffers import RankBuffers
from .symmetric_memory import SymmetricBuffer
from .watchdog import WatchdogError, name_silent

STATE = ("launch_epoch", "rank_signal", "expert_recv_count_sum", "expert_counts_seen")
STILL_S, POLL_S = 0.5, 0.02
"""How long nothing may change before the host writes for the lost ranks: live ranks take microseconds between two writes."""


@dataclass(frozen=True)
class Waiting:
    """What a launch waits for: `counts`, the reports that each local expert lacks, and `signals`, the arrivals that the barrier lacks.
    0 where the launch does not wait, or waits for more ranks than are lost."""

    counts: torch.Tensor
    signals: int

    @classmethod
    def of(cls, state: dict[str, torch.Tensor], ranks: int, lost: int) -> Waiting:
        """From a rank's `STATE`; `lost` of the group's `ranks` are gone."""
        reports = (state["expert_recv_count_sum"] - state["expert_counts_seen"]) >> 32
        lacking = ranks - reports
        # A launch that has not sent its own part lacks more than the lost ranks'; one that has counted lacks all of the next launch's.
        counts = torch.where((lacking > 0) & (lacking <= lost), lacking, 0)
        target = (int(state["launch_epoch"]) + 1) * ranks
        signals = (target - int(state["rank_signal"][RankBarrier.BEFORE_COMBINE])) & 0xFFFFFFFF
        return cls(counts, signals if 0 < signals <= lost else 0)

    @property
    def phase(self) -> str:
        """Empty when the launch waits for no lost rank."""
        return "dispatch" if self.counts.any() else "combine" if self.signals else ""


class Understudy:
    """Writes on one rank's host what lost ranks would write.  `memory` is this rank's, `ranks` the size of the group.  Make it before any
    launch waits, because allocating pinned memory may wait for a kernel."""

    def __init__(self, memory: RankBuffers, ranks: int) -> None:
        self._memory, self._ranks = memory, ranks
        cuda = memory.view(STATE[0]).is_cuda
        self._stream = torch.cuda.Stream() if cuda else None
        self._state = {name: torch.empty_like(memory.view(name), device="cpu", pin_memory=cuda) for name in STATE}
        self._row = torch.empty_like(memory.view("expert_recv_count")[0], device="cpu", pin_memory=cuda)

    def look(self) -> dict[str, torch.Tensor]:
        """A copy of `STATE`, read while a launch runs."""
        for name, words in self._state.items():
            self._copy(words, self._memory.view(name))
        return {name: words.clone() for name, words in self._state.items()}

    def play(self, lost: Sequence[int]) -> str:
        """Writes what the launch lacks of these ranks, counts before reports.  Returns its phase, empty when it lacks nothing."""
        found = Waiting.of(self.look(), self._ranks, len(lost))
        if found.counts.any():
            silent = found.counts == len(lost)
            received, sums = self._memory.view("expert_recv_count"), self._state["expert_recv_count_sum"]
            for rank in lost:
                self._copy(self._row, received[rank])
                self._row[silent] = 0  # a rank that has reported to some experts has counted for them
                self._copy(received[rank], self._row)
            sums += torch.where(silent, found.counts * ONE_REPORT, 0)
            self._copy(self._memory.view("expert_recv_count_sum"), sums)
        elif found.signals:
            signals, which = self._state["rank_signal"], slice(RankBarrier.BEFORE_COMBINE, RankBarrier.BEFORE_COMBINE + 1)
            signals[which] += found.signals
            self._copy(self._memory.view("rank_signal")[which], signals[which])
        return found.phase

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        if self._stream is None:
            to.copy_(source)
            return
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def end_launches(self, lost: Sequence[int], done: Callable[[], bool]) -> str:
        """Writes for these ranks until `done`.  Returns the phase of the first launch that lacked them, empty when none did."""
        phase, before, since = "", self.look(), time.monotonic()
        while not done():
            time.sleep(POLL_S)
            now = self.look()
            if any(not torch.equal(now[name], before[name]) for name in STATE):
                before, since = now, time.monotonic()
            elif time.monotonic() - since > STILL_S:
                played = self.play(lost)
                phase = phase or played
                before, since = self.look(), time.monotonic()
        return phase


def end_or_lose(understudy: Understudy, symmetric: SymmetricBuffer, limit_s: float) -> None:
    """Returns when the work on torch's current stream has ended or failed, or when lost ranks cannot be determined.  If it takes longer
    than the limit and ranks are lost, ends it by writing for them and raises `WatchdogError`."""
    event = torch.cuda.Event()
    event.record()
    end = time.monotonic() + limit_s
    while not event.query():
        if time.monotonic() > end:
            break
        time.sleep(POLL_S)
    else:
        return
    lost = symmetric.silent_ranks()
    if lost:
        phase = understudy.end_launches(lost, event.query)
        where = f", {phase}" if phase else ""
        raise WatchdogError(f"rank {symmetric.rank}{where}: calls took more than {limit_s:g} s{name_silent(lost)}: taken for lost")
