"""Control flow of a listing: natural loops, and what is reachable from an instruction.

A back edge goes to an instruction that dominates its origin; the loop is what reaches the origin without passing the head. Two kinds of
code are left out, because a converged warp that does not have to wait never runs them: what ptxas lays out after the kernel's last EXIT
(retries of mbarrier waits, copies of code for diverged warps), and edges of BRA.DIV, which lead there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .listing import Listing

_NO_FALLTHROUGH = frozenset({"EXIT", "RET", "BPT"})
_NOT_A_JUMP = frozenset({"BSSY", "WARPSYNC"})


@dataclass(frozen=True)
class Loop:
    """A natural loop: indices of its instructions, those of nested loops included; `head` is the first."""

    head: int
    body: frozenset[int]


@dataclass(frozen=True)
class Flow:
    """The control-flow graph of a listing, one node per instruction."""

    listing: Listing

    @cached_property
    def end(self) -> int:
        """Index after the last EXIT of the main path."""
        code = self.listing.instructions
        return 1 + max((i for i, one in enumerate(code) if one.operation == "EXIT"), default=len(code) - 1)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {one.address: i for i, one in enumerate(self.listing.instructions)}

    def successors(self, index: int, *, diverged: bool = False) -> list[int]:
        """Possible next instructions; `diverged` adds targets of BRA.DIV."""
        one = self.listing.instructions[index]
        following = []
        jumps = one.target is not None and one.operation not in _NOT_A_JUMP and (diverged or one.opcode != "BRA.DIV")
        always = not one.predicate and not one.operands.startswith(("U", "!U", "P", "!P"))
        if not (one.operation in _NO_FALLTHROUGH and always) and not (one.operation == "BRA" and jumps and always):
            following.append(index + 1)
        if jumps and one.operation != "BSYNC" and one.target in self._index:
            following.append(self._index[one.target])
        return [i for i in following if i < len(self.listing.instructions)]

    @cached_property
    def _graph(self) -> Any:
        """The graph of instructions reachable from the first without BRA.DIV."""
        import networkx as nx

        every = nx.DiGraph([(i, following) for i in range(len(self.listing.instructions)) for following in self.successors(i)])
        every.add_node(0)
        return every.subgraph({0} | nx.descendants(every, 0)).copy()

    @cached_property
    def _dominated(self) -> Any:
        """The dominator tree: from each instruction to those whose immediate dominator it is."""
        import networkx as nx

        tree = nx.DiGraph([(by, one) for one, by in nx.immediate_dominators(self._graph, 0).items() if by not in (None, one)])
        tree.add_node(0)
        return tree

    @cached_property
    def loops(self) -> list[Loop]:
        """All loops of the main path, inner ones before those around them."""
        import networkx as nx

        place = {one: -number for number, one in enumerate(nx.dfs_postorder_nodes(self._graph, 0))}
        tails: dict[int, set[int]] = {}
        for tail, head in self._graph.edges:
            if place[head] <= place[tail] and head in {tail} | nx.ancestors(self._dominated, tail):
                tails.setdefault(head, set()).add(tail)
        loops = []
        for head in sorted(tails, key=lambda one: place[one]):
            without = nx.restricted_view(self._graph, [head], [])
            body = {head}.union(*({tail} | nx.ancestors(without, tail) for tail in tails[head] - {head}))
            if indices := frozenset(i for i in body if i < self.end):
                loops.append(Loop(head, indices))
        return sorted(loops, key=lambda loop: len(loop.body))

    def side(self, index: int, other: int) -> frozenset[int]:
        """The branch with `index` but not `other`: what its first instruction dominates on the main path."""
        import networkx as nx

        above = {other} | nx.ancestors(self._dominated, other)
        first = next((one for one in nx.shortest_path(self._dominated, 0, index) if one not in above), index)
        return frozenset(i for i in {first} | nx.descendants(self._dominated, first) if i < self.end)

    def reachable(self, index: int) -> frozenset[int]:
        """Instructions reachable from `index`, itself, retries of waits and code of diverged warps included."""
        import networkx as nx

        every = nx.DiGraph([(i, other) for i in range(len(self.listing.instructions)) for other in self.successors(i, diverged=True)])
        every.add_node(index)
        return frozenset({index} | nx.descendants(every, index))
