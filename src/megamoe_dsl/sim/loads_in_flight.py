"""Loads in flight: until an instruction uses the value, the memory may still be read.

PTX orders a thread's own load before its release, but says of no other thread when it is over: only an instruction that uses the value
waits for it (docs/lab/hopper.md has a load that came back late). A copy from register to register is no use, for it may be left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cached_property, reduce
from operator import or_

from .parser import ParsedKernel, PtxInstruction

REGISTER = re.compile(r"%?[A-Za-z_$][\w$@%.]*")
_RELEASES = {"arrive", "release", "acq_rel", "bulk", "sync", "fence"}
_SHUFFLES = ("shfl", "vote", "match", "redux")
OTHERS = -1  # The kind of loads that are under way at shuffles only.
_ORDERED = {"acquire", "relaxed", "volatile", "mmio", "param", "const", "local", "nc"}


def registers_of(ins: PtxInstruction) -> set[str]:
    """All registers that an instruction names (and other names, which are nobody's destination)."""
    names = {name for operand in ins.operands for name in REGISTER.findall(operand)}
    return names | {ins.predicate} if ins.predicate else names


def is_weak_load(ins: PtxInstruction) -> bool:
    """Whether it reads memory that others may write, without an order of its own."""
    return ins.parts[0] in ("ld", "ldmatrix") and not _ORDERED.intersection(part.split("::")[0] for part in ins.parts)


class LoadsInFlight:
    """The weak loads of a kernel, and where each may be under way: from the load to the first use of what it loaded."""

    def __init__(self, kernel: ParsedKernel) -> None:
        self.code = kernel.code
        self.loads = [ins for ins in self.code if is_weak_load(ins)]

    @cached_property
    def _holds(self) -> dict[str, int]:
        """For each register, the loads whose value it may hold, a bit each; copies are followed."""
        holds, before = defaultdict[str, int](int), None
        for bit, ins in enumerate(self.loads):
            for name in REGISTER.findall(ins.operands[0]):
                holds[name] |= 1 << bit
        copies = [(REGISTER.findall(ins.operands[0]), REGISTER.findall(ins.operands[1])) for ins in self.code if ins.parts[0] == "mov"]
        while holds != before:
            before = dict(holds)
            for targets, sources in copies:
                for name in targets:
                    holds[name] |= reduce(or_, (holds[one] for one in sources), 0)
        return holds

    @cached_property
    def _under_way(self) -> list[int]:
        """For every instruction, the loads (a bit each) that may be in flight before it."""
        number = {id(ins): bit for bit, ins in enumerate(self.loads)}
        used = [
            0 if ins.parts[0] == "mov" else reduce(or_, (self._holds.get(name, 0) for name in registers_of(ins)), 0) for ins in self.code
        ]
        before = [0] * len(self.code)
        seen = [False] * len(self.code)
        work = [0] if self.code else []
        while work:
            at = work.pop()
            seen[at] = True
            ins = self.code[at]
            after = before[at] & ~used[at] | (1 << number[id(ins)] if id(ins) in number else 0)
            following = [] if ins.target is None else [ins.target]
            if not (ins.parts[0] in ("bra", "ret", "exit", "trap") and ins.predicate is None):
                following.append(at + 1)
            for other in following:
                if other < len(self.code) and (not seen[other] or after & ~before[other]):
                    before[other] |= after
                    work.append(other)
        return before

    def _at(self, shuffles: bool) -> list[tuple[int, int]]:
        """(PTX line, loads in flight there, a bit each) of what releases something or waits for lanes: of `shuffles`, or of all else."""
        masks: dict[int, int] = {}
        for ins, mask in zip(self.code, self._under_way, strict=True):
            if mask and (shuffles if ins.parts[0] in _SHUFFLES else _RELEASES.intersection(ins.parts) or ins.parts[0] in ("red", "atom")):
                masks[ins.line] = masks.get(ins.line, 0) | mask
        return list(masks.items())

    @cached_property
    def kinds(self) -> dict[int, int]:
        """Maps the PTX line of each load that may be in flight at a release to its kind: a kind is in flight at the same lines."""
        told = self._at(shuffles=False)
        places = {load.line: tuple(line for line, mask in told if mask >> bit & 1) for bit, load in enumerate(self.loads)}
        numbers = {where: number for number, where in enumerate(dict.fromkeys(where for where in places.values() if where))}
        return {line: numbers[where] for line, where in places.items() if where}

    @cached_property
    def by_line(self) -> dict[int, frozenset[int]]:
        """Maps the PTX line of each instruction that releases something or waits for lanes to the kinds of loads in flight there."""
        kinds = [self.kinds.get(load.line, OTHERS) for load in self.loads]
        return {line: frozenset(one for bit, one in enumerate(kinds) if mask >> bit & 1) for line, mask in self._at(shuffles=True)}
