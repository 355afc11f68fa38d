"""Instructions of every role per unit of its work: K block, tile, token.

Method. Line info says which function of kernels/mega_moe an instruction comes from (device/location.py); the loops of the control flow
(flow.py) say what repeats. A measure is the smallest loop that holds all of its anchor operations and
mostly comes from its role's function, without the loops inside it that have a measure of their own. Counts are static, per warp, with every
branch taken, and divided by the units an iteration covers, as the anchors show: four MMAs and two TMA loads are one K block.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..config import KernelConfig
from ..layouts.smem_plan import combine_chunk
from .flow import Flow, Loop
from .sass import Instruction, Listing
from .source import function_of, functions_of

MMAS_PER_K_BLOCK = 4
LOADS_PER_K_BLOCK = 2
TOKENS_PER_UNIT = 8


class InspectionError(RuntimeError):
    """The code does not look as a measure expects."""


@dataclass(frozen=True)
class Measure:
    """`instructions` per `unit` of `role`, and how they divide into kinds (sass.KINDS).  `key` names the measure in JSON.

    A tile is counted without its K blocks or tokens, a combined token with one top-k slot, a slot with all of the token's channels.
    """

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

    def __init__(self, config: KernelConfig, listing: Listing) -> None:
        self.config, self.flow, self.code = config, Flow(listing), listing.instructions
        if not any(one.source for one in self.code):
            raise InspectionError("the cubin has no line info: compile with line_info=True")

    def _instructions(self, indices: Iterable[int]) -> list[Instruction]:
        return [self.code[i] for i in sorted(indices)]

    def inner(self, function: str, **anchors: int) -> Loop:
        """The smallest loop with at least the given number of each anchor operation, most of whose lines are in `function`."""
        for loop in self.flow.loops:
            body = self._instructions(loop.body)
            if all(_count(body, operation) >= number for operation, number in anchors.items()):
                votes = functions_of(body).most_common(1)
                if votes and votes[0][0].startswith(function):
                    return loop
        wanted = ", ".join(anchors)
        raise InspectionError(f"no loop with {wanted} comes from {function}")

    def around(self, loop: Loop) -> Loop:
        """The next larger loop that holds `loop`."""
        for outer in self.flow.loops:
            if loop.body < outer.body:
                return outer
        raise InspectionError(f"no loop around {self.code[loop.head].address:#x}")

    def accumulator_load(self, function: str) -> int:
        """Index of the first LDTM that comes from `function`."""
        for i, one in enumerate(self.code):
            if one.operation == "LDTM" and (function_of(one) or "").startswith(function):
                return i
        raise InspectionError(f"no LDTM comes from {function}")

    def measure(self, key: str, role: str, unit: str, loop: Loop, units: float, without: Iterable[Loop] = ()) -> Measure:
        indices = loop.body.difference(*(inner.body for inner in without))
        kinds = Counter(self.code[i].kind for i in indices)
        per_unit = {kind: count / units for kind, count in kinds.most_common()}
        return Measure(key, role, unit, len(indices) / units, per_unit, self.code[loop.head].address)

    def k_loop(self, function: str, operation: str, per_block: int) -> tuple[Loop, float]:
        """A role's K loop and the K blocks of one iteration."""
        loop = self.inner(function, **{operation: per_block})
        return loop, _count(self._instructions(loop.body), operation) / per_block


def sm100_config(config: object) -> KernelConfig:
    """`config`, if it is one of the SM100 kernel.  Raises `InspectionError`."""
    if not isinstance(config, KernelConfig):
        raise InspectionError(f"only the SM100 kernel can be inspected so far, not one with a {type(config).__name__}")
    return config


def measure_all(config: object, listing: Listing) -> list[Measure]:
    """Every measure of the SM100 mega kernel.  Raises `InspectionError` when one is missing, and for another kernel's configuration."""
    find = Measurer(sm100_config(config), listing)
    found = []
    for key, role, function, operation, per_block in (
        ("mma", "MMA warp", "mma.", r"UTC\w*MMA", MMAS_PER_K_BLOCK),
        ("token_loader", "token loader", "load.load_tokens", "UTMALDG", LOADS_PER_K_BLOCK),
        ("weight_loader", "weight loader", "load.load_weights", "UTMALDG", LOADS_PER_K_BLOCK),
    ):
        loop, blocks = find.k_loop(function, operation, per_block)
        found.append(find.measure(f"{key}_k_block", role, "K block", loop, blocks))
        found.append(find.measure(f"{key}_tile", role, "tile", find.around(loop), 1, [loop]))

    found += _epilogue(find)
    found.append(find.measure("dispatch_token", "dispatch", "token", find.inner("pull.", UBLKCP=2), 1))
    return found + _combine(find)


def _epilogue(find: Measurer) -> list[Measure]:
    """A pass of each tile function, and the tile loop around both.  A tile of one pass has no loop of its own: then the pass is all that
    runs for one of the two kinds of tile and not for the other, its set-up included."""
    first, last = find.accumulator_load("epilogue_l1."), find.accumulator_load("epilogue_l2.")
    tile = next(loop for loop in find.flow.loops if first in loop and last in loop)

    def one_pass(own: int, other: int) -> Loop:
        around = next((loop for loop in find.flow.loops if own in loop and other not in loop), None)
        return around or Loop(own, find.flow.side(own, other) & tile.body)

    passes = [one_pass(first, last), one_pass(last, first)]
    units = find.config.store_block_m / TOKENS_PER_UNIT
    return [
        find.measure("l1_epilogue_8_tokens", "L1 epilogue", "8 tokens", passes[0], units),
        find.measure("l2_epilogue_8_tokens", "L2 epilogue", "8 tokens", passes[1], units),
        find.measure("epilogue_tile", "epilogue", "tile", tile, 1, passes),
    ]


def _combine(find: Measurer) -> list[Measure]:
    """A token is summed chunk by chunk: the loop of a slot runs once per chunk and so does the loop of a chunk."""
    hidden = find.config.problem.hidden
    chunks = hidden // combine_chunk(hidden)
    slot = find.inner("combine.", SYNCS=1, LDS=1)
    chunk = find.around(slot)
    parts = [find.measure("combine_slot", "combine", "top-k slot", slot, 1 / chunks)]
    kinds = Counter(find.measure("", "", "", chunk, 1 / chunks).kinds)
    if chunks > 1:
        kinds.update(find.measure("", "", "", find.around(chunk), 1, [chunk]).kinds)
    parts.append(Measure("combine_token", "combine", "token", kinds.total(), dict(kinds), find.code[chunk.head].address))
    return parts
