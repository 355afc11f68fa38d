"""Warp barriers of the mega kernels, each by the role's function that it stands in, and SM90 kernels without some of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache

from fault_runs import sign_of
from fault_trial import SEEDS
from test_sm90_faults import subject

from first_finding import first_sign
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.sass.measurer import function_at

EXPLAINED = {
    "pull_tokens": "counts of ranks lie in registers, which the shuffles and ballots that follow wait for",
    "load_chunk": "after the loads of a token: they tell the mbarrier that every lane waits for",
    "received": "what a lane has acquired it tells itself, by its own arrival at `counts`",
    "publish_blocks": "lane 0 alone writes a tile and says that it is there",
    "next_tile": "every lane waits for a tile, reads it and gives it back on its own",
    "store_if_fc1": "lane 0 alone waits for its stores and says that they are done",
    "start_loads": "after the loads of a piece: they tell the mbarrier that every lane waits for",
    "combine_tokens": "the end of the kernel: nothing follows lane 0's wait for its last store",
}
"""Warp barriers that order no accesses of different lanes, by the function that they stand in: what does instead."""


@dataclass(frozen=True)
class WarpBarrier:
    """One `bar.warp.sync`: where its text stands in the PTX, and the function and line that it comes from."""

    span: tuple[int, int]
    function: str
    line: int


@cache
def kernel(order: str) -> Artifact:
    """The kernel of `test_sm90_faults.subject`, with the lines of its sources."""
    return compile_kernel(subject(order)[0].config, line_info=True)


@cache
def warp_barriers(order: str) -> tuple[WarpBarrier, ...]:
    """All of an SM90 kernel, in the order of its PTX."""
    return warp_barriers_of(kernel(order))


def warp_barriers_of(compiled: Artifact) -> tuple[WarpBarrier, ...]:
    """All of a kernel that has the lines of its sources, in the order of its PTX."""
    paths = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', compiled.ptx, re.MULTILINE))
    found, place = [], ("", 0)
    for match in re.finditer(r"\.loc\s+(\d+)\s+(\d+)|bar\.warp\.sync [^;]*;", compiled.ptx):
        if match[1]:
            place = paths[match[1]], int(match[2])
        else:
            function = function_at(*place)
            assert function is not None, place
            found.append(WarpBarrier(match.span(), function, place[1]))
    return tuple(found)


def how_noticed_without(order: str, dropped: Collection[WarpBarrier]) -> str | None:
    """The first sign of a kernel without these barriers, as `kind: text`, under some schedules and leaders; None when there is none."""
    compiled, case = kernel(order), subject(order)[1]
    ptx = compiled.ptx
    for start, end in sorted((one.span for one in dropped), reverse=True):
        ptx = ptx[:start] + ptx[end:]
    launches = ([len(x) for x in case.x], (3, 2), (0, 0))
    faulty = replace(compiled, ptx=ptx)
    return next((sign for seed in SEEDS if (sign := first_sign(lambda seed=seed: sign_of(faulty, case, launches, seed)))), None)
