"""A launch in its rank's stream."""

from __future__ import annotations

from collections.abc import Iterable

from .clock import Clock
from .interfaces import CtaLike
from .launch import Launch
from .memory import ByteStore
from .race import Race


class Grid:
    """A launch with its program and parameters, the launch before it in the stream, and how many of its clusters have not ended.

    end      what the next launch of the stream knows once all have
    settled  whether all have, and what they had posted has happened
    """

    def __init__(self, launch: Launch, before: Grid | None) -> None:
        self.launch, self.before = launch, before
        self.program = launch.check()
        self.parameters = ByteStore(self.program.pack(launch.args), None)
        self.unfinished = 0
        self.end: Clock | None = None
        self.settled = False
        self.ctas: set[CtaLike] = set()
        self._let: set[CtaLike] = set()
        self._waited: set[CtaLike] = set()
        self._after_waiting = True
        self._holding = launch.ctas

    # ---- launches that begin early

    def let_next(self, cta: CtaLike, waited: bool) -> None:
        """A CTA lets the next launch begin; whether who does has waited for the launches before. Only its first time counts."""
        if cta not in self._let:
            self._let.add(cta)
            self._after_waiting &= waited
            self._holding -= 1

    def may_begin(self) -> bool:
        """Whether the launches before let it, if it is early."""
        return self.before is None or not self.before._holding

    def begins_with(self) -> Clock | None:
        """What its threads know at first. Of the launches before an early one those that the one before it had waited for, everywhere."""
        if self.before is None or not self.launch.early:
            return self.before.end if self.before else None
        earlier = self.before.before
        return earlier.end if earlier and self.before._after_waiting else self.before.begins_with()

    def must_wait(self) -> bool:
        """Whether it may run beside launches before it, and the last of these has not ended."""
        return self.launch.early and self.before is not None and not self.before.settled

    def waited(self, cta: CtaLike) -> Clock | None:
        """Threads of a CTA have waited for the launches before; what they know then."""
        self._waited.add(cta)
        return self.before.end if self.before else None

    # ---- its end

    def cancel(self) -> None:
        """A cluster will not start."""
        self.unfinished -= 1
        self._holding -= self.launch.ctas_of_cluster

    def left(self, ctas: Iterable[CtaLike], clocks: Iterable[Clock], race: Race | None) -> None:
        """A cluster of these CTAs has ended; `clocks` are those of its warps."""
        self.unfinished -= 1
        for cta in ctas:
            self.let_next(cta, cta in self._waited)
        if race:
            self.end = self.end or race.clock()
            for clock in clocks:
                self.end.join(clock)
            if not self.unfinished:
                race.complete(self.end, self.ctas)
