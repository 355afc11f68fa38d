"""Instructions of every role per unit of its work: K block, tile, token.

Method. Line info says which function of the kernel an instruction comes from (device/location.py); the loops of the control flow
(flow.py) say what repeats. A measure is the smallest loop that holds all of its anchor operations and
mostly comes from its role's function, without the loops inside it that have a measure of their own. Counts are static, per warp, with every
branch taken, and divided by the units an iteration covers, as the anchors show: four MMAs and two TMA loads are one K block on SM100.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .flow import Flow, Loop
from .listing import Instruction, Listing

TOKENS_PER_UNIT = 8
LANE_VECTOR_CHANNELS = 256  # channels that a warp reads with one load per lane
ADDS_A_SLOT = ("combine.", "results.add")


class InspectionError(RuntimeError):
    """SASS does not have the form that a measure expects."""


@dataclass(frozen=True)
class Measure:
    """`instructions` per `unit` of `role`, and how they divide into kinds (sass.KINDS). `key` names the measure in JSON.  A tile is counted
    without its K blocks or tokens, a combined token with one top-k slot, a slot with all of the token's channels."""

    key: str
    role: str
    unit: str
    instructions: float
    kinds: dict[str, float]
    address: int


def _count(code: Iterable[Instruction], operation: str) -> int:
    return sum(bool(re.fullmatch(operation, one.operation)) for one in code)


class Measurer:
    """Finds the loops of one listing."""

    def __init__(self, config: Any, listing: Listing) -> None:
        self.config, self.flow, self.code = config, Flow(listing), listing.instructions
        if not any(one.source for one in self.code):
            raise InspectionError("the cubin has no line info: compile with line_info=True")

    def _instructions(self, indices: Iterable[int]) -> list[Instruction]:
        return [self.code[i] for i in sorted(indices)]

    def inner(self, function: str | tuple[str, ...], **anchors: int) -> Loop:
        """The smallest loop with at least the given number of each anchor operation, most lines of which come from `function`."""
        for loop in self.flow.loops:
            body = self._instructions(loop.body)
            if all(_count(body, operation) >= number for operation, number in anchors.items()):
                votes = Counter(name for one in body if (name := function_of(one)) is not None).most_common(1)
                if votes and votes[0][0].startswith(function):
                    return loop
        raise InspectionError(f"no loop with {', '.join(anchors)} comes from {function}")

    def around(self, loop: Loop) -> Loop:
        for outer in self.flow.loops:
            if loop.body < outer.body:
                return outer
        raise InspectionError(f"no loop around {self.code[loop.head].address:#x}")

    def accumulator_load(self, function: str) -> int:
        for i, one in enumerate(self.code):
            if one.operation == "LDTM" and (function_of(one) or "").startswith(function):
                return i
        raise InspectionError(f"no LDTM comes from {function}")

    def tile_loop(self, *inside: int) -> Loop:
        for loop in self.flow.loops:
            if loop.body.issuperset(inside):
                return loop
        raise InspectionError("no loop around " + ", ".join(f"{self.code[index].address:#x}" for index in inside))

    def either(self, own: int, other: int, tile: Loop) -> Loop:
        """The code of the kind of tile that runs instruction `own` but not `other`: a loop, or a branch of the loop `tile`."""
        around = next((loop for loop in self.flow.loops if own in loop.body and other not in loop.body), None)
        return around or Loop(own, self.flow.side(own, other) & tile.body)

    def measure(self, key: str, role: str, unit: str, loop: Loop, units: float, without: Iterable[Loop] = ()) -> Measure:
        """A loop's instructions, without those of loops `without`, over the units of work of one iteration."""
        indices = loop.body.difference(*(inner.body for inner in without))
        kinds = Counter(self.code[i].kind for i in indices)
        per_unit = {kind: count / units for kind, count in kinds.most_common()}
        return Measure(key, role, unit, len(indices) / units, per_unit, self.code[loop.head].address)

    def k_loop(self, function: str | tuple[str, ...], operation: str, per_block: int) -> tuple[Loop, float]:
        loop = self.inner(function, **{operation: per_block})
        return loop, _count(self._instructions(loop.body), operation) / per_block

    def tiled_loop(self, key: str, role: str, function: str, operation: str, per_block: int) -> list[Measure]:
        loop, blocks = self.k_loop(function, operation, per_block)
        tile = self.measure(f"{key}_tile", role, "tile", self.around(loop), 1, [loop])
        return [self.measure(f"{key}_k_block", role, "K block", loop, blocks), tile]

    def dispatch(self) -> Measure:
        """A pulled token: the loop with its two bulk copies."""
        return self.measure("dispatch_token", "dispatch", "token", self.inner("pool.", UBLKCP=2), 1)

    def combine(self) -> list[Measure]:
        """A token is summed piece by piece: the loops of a slot and of a piece run once per piece."""
        plan = self.config.smem.combine
        slot = self.inner(ADDS_A_SLOT, LDS=1)
        loads = (2 if plan.row.scaled else 1) * plan.chunk / LANE_VECTOR_CHANNELS
        slots = _count(self._instructions(slot.body), "LDS") / loads
        return [
            self.measure("combine_slot", "combine", "top-k slot", slot, slots / plan.pieces),
            self.measure("combine_token", "combine", "token", self.around(slot), 1 / plan.pieces),
        ]


ROLE_FOLDERS = frozenset({"kernels", "blocks"})
SHARED_FILES = frozenset({"kernel", "context", "table", "rank_barrier", "maps", "walk"})
"""Files with functions that several roles run, which therefore do not identify a role."""


@lru_cache(maxsize=128)
def _functions(path: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except OSError:
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return tuple(sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes))


def function_at(path: str, line: int) -> str | None:
    """The innermost function around a line, or the one before: the DSL counts some lines of its loops twice.  None without a function."""
    before = [(last, name) for first, last, name in _functions(path) if first <= line]
    return next((name for last, name in reversed(before) if line <= last), before[-1][1] if before else None)


def function_of(instruction: Instruction) -> str | None:
    """`mma.issue_mma` for an instruction from the file of a role or of a block; None when its line is in a shared file or a helper."""
    if instruction.source is None:
        return None
    path, line = Path(instruction.source[0]), instruction.source[1]
    if not ROLE_FOLDERS.intersection(path.parts) or path.stem in SHARED_FILES:
        return None
    name = function_at(str(path), line)
    return None if name is None else f"{path.stem}.{name}"
