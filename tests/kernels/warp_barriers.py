"""The SM90 kernel's warp barriers, each by the role's function that it stands in, and kernels without some of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fault_runs import sign_of
from test_sm90_faults import SEEDS, subject

import megamoe_dsl.kernels.mega_moe as family
from first_finding import first_sign
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.sim.program import load

FOLDER = Path(family.__file__).parent


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
    """All of a kernel, in the order of its PTX."""
    ptx = kernel(order).ptx
    sources = load(ptx, None).kernel.sources
    found = []
    for match in re.finditer(r"bar\.warp\.sync [^;]*;", ptx):
        file, line = sources[ptx.count("\n", 0, match.start()) + 1].split(":")
        found.append(WarpBarrier(match.span(), function_at(file, int(line)), int(line)))
    return tuple(found)


def function_at(name: str, line: int) -> str:
    """The function of the family's file of this name that has the line."""
    (file,) = (path for path in FOLDER.rglob(name) if path.parent.name != "sm100")
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    (function,) = (one.name for one in functions if one.lineno <= line <= (one.end_lineno or 0))
    return function


def how_noticed_without(order: str, dropped: Collection[WarpBarrier]) -> str | None:
    """The first sign of a kernel without these barriers, as `kind: text`, under some schedules and leaders; None when there is none."""
    compiled, case = kernel(order), subject(order)[1]
    ptx = compiled.ptx
    for start, end in sorted((one.span for one in dropped), reverse=True):
        ptx = ptx[:start] + ptx[end:]
    launches = ([len(x) for x in case.x], (3, 2), (0, 0))
    faulty = replace(compiled, ptx=ptx)
    return next((sign for seed in SEEDS if (sign := first_sign(lambda seed=seed: sign_of(faulty, case, launches, seed)))), None)
