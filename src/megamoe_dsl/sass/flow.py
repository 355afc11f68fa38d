"""Control flow of a listing: blocks, natural loops, and what is reachable from an instruction.

A back edge goes to an instruction that dominates its origin; the loop is what reaches the origin without passing the head. Two kinds of
code are left out, because a converged warp that does not have to wait never runs them: what ptxas lays out after the kernel's last EXIT
(retries of mbarrier waits, copies of code for diverged warps), and edges of BRA.DIV, which lookahead there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .listing import Instruction, Listing

_NO_FALLTHROUGH = frozenset({"EXIT", "RET", "BPT"})
_NOT_A_JUMP = frozenset({"BSSY", "WARPSYNC"})


@dataclass(frozen=True)
class Loop:
    """A natural loop: indices of its instructions, those of nested loops included; `head` is the first."""

    head: int
    body: frozenset[int]

    def __contains__(self, index: int) -> bool:
        return index in self.body

    def __len__(self) -> int:
        return len(self.body)


@dataclass(frozen=True)
class Blocks:
    """Reachable basic blocks, named by their first instruction: in reverse post-order, with their last instruction and predecessors."""

    order: list[int]
    ends: dict[int, int]
    predecessors: dict[int, list[int]]


@dataclass(frozen=True)
class Flow:
    """The control-flow graph of a listing, one node per instruction."""

    listing: Listing

    @cached_property
    def end(self) -> int:
        """Index after the last EXIT of the main path."""
        last = max((i for i, one in enumerate(self._code) if one.operation == "EXIT"), default=len(self._code) - 1)
        return last + 1

    @property
    def _code(self) -> tuple[Instruction, ...]:
        return self.listing.instructions

    @cached_property
    def _index(self) -> dict[int, int]:
        return {one.address: i for i, one in enumerate(self._code)}

    def successors(self, index: int, *, diverged: bool = False) -> list[int]:
        """What can run next; `diverged` adds where BRA.DIV goes."""
        one = self._code[index]
        following = []
        jumps = one.target is not None and one.operation not in _NOT_A_JUMP and (diverged or one.opcode != "BRA.DIV")
        always = not one.predicate and not one.operands.startswith(("U", "!U", "P", "!P"))
        if not (one.operation in _NO_FALLTHROUGH and always) and not (one.operation == "BRA" and jumps and always):
            following.append(index + 1)
        if jumps and one.operation != "BSYNC" and one.target in self._index:
            following.append(self._index[one.target])
        return [i for i in following if i < len(self._code)]

    @cached_property
    def _blocks(self) -> Blocks:
        starts = {0}
        for i in range(len(self._code)):
            following = self.successors(i)
            if following != [i + 1]:
                starts.update(following)
                starts.add(i + 1)
        ends: dict[int, int] = {}
        predecessors: dict[int, list[int]] = {0: []}
        finished: list[int] = []
        stack: list[tuple[int, list[int]]] = []

        def enter(start: int) -> None:
            last = start
            while last + 1 not in starts and self.successors(last) == [last + 1]:
                last += 1
            ends[start] = last
            following = self.successors(last)
            for block in following:
                predecessors.setdefault(block, []).append(start)
            stack.append((start, following))

        enter(0)
        while stack:
            start, rest = stack[-1]
            if not rest:
                finished.append(start)
                stack.pop()
            elif (block := rest.pop()) not in ends:
                enter(block)
        return Blocks(finished[::-1], ends, predecessors)

    @cached_property
    def _dominators(self) -> dict[int, int]:
        """Immediate dominator of each block (Cooper, Harvey and Kennedy)."""
        order, predecessors = self._blocks.order, self._blocks.predecessors
        rank = {start: i for i, start in enumerate(order)}
        immediate = {order[0]: order[0]}
        changed = True
        while changed:
            changed = False
            for start in order[1:]:
                new = -1
                for other in predecessors[start]:
                    if other in immediate:
                        new = other if new < 0 else self._common(immediate, rank, new, other)
                if immediate.get(start) != new:
                    immediate[start], changed = new, True
        return immediate

    @staticmethod
    def _common(immediate: dict[int, int], rank: dict[int, int], a: int, b: int) -> int:
        while a != b:
            while rank[a] > rank[b]:
                a = immediate[a]
            while rank[b] > rank[a]:
                b = immediate[b]
        return a

    def _dominates(self, head: int, start: int) -> bool:
        immediate = self._dominators
        while start != head and immediate[start] != start:
            start = immediate[start]
        return start == head

    @cached_property
    def loops(self) -> list[Loop]:
        """All loops of the main path, inner ones before those around them."""
        order, ends, predecessors = self._blocks.order, self._blocks.ends, self._blocks.predecessors
        found: dict[int, set[int]] = {}
        for head in order:
            for tail in predecessors[head]:
                if self._dominates(head, tail):
                    body = found.setdefault(head, {head})
                    work = [tail]
                    while work:
                        block = work.pop()
                        if block not in body:
                            body.add(block)
                            work += predecessors[block]
        loops = []
        for head, blocks in found.items():
            indices = frozenset(i for b in blocks for i in range(b, ends[b] + 1) if i < self.end)
            if indices:
                loops.append(Loop(head, indices))
        return sorted(loops, key=len)

    def _block(self, index: int) -> int:
        return next(start for start, end in self._blocks.ends.items() if start <= index <= end)

    def side(self, index: int, other: int) -> frozenset[int]:
        """The branch that runs `index` and not `other`: all that its first block dominates on the main path."""
        chain = [self._block(index)]
        while self._dominators[chain[-1]] != chain[-1]:
            chain.append(self._dominators[chain[-1]])
        away = self._block(other)
        first = next((start for start in reversed(chain) if not self._dominates(start, away)), chain[0])
        blocks = [(start, end) for start, end in self._blocks.ends.items() if self._dominates(first, start)]
        return frozenset(i for start, end in blocks for i in range(start, end + 1) if i < self.end)

    def reachable(self, index: int) -> frozenset[int]:
        """What can run after `index`, slow paths included."""
        seen, work = {index}, [index]
        while work:
            at = work.pop()
            for other in self.successors(at, diverged=True):
                if other not in seen:
                    seen.add(other)
                    work.append(other)
        return frozenset(seen)
