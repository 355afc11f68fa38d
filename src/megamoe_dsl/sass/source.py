"""From a SASS instruction to the function of a role: line info, and the syntax tree of the file it names."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from .listing import Instruction

ROLE_FOLDERS = frozenset({"kernels", "blocks"})
SHARED_FILES = frozenset({"kernel", "context", "table", "rank_barrier", "maps", "walk"})
"""Files whose functions run in several roles: they say nothing about whose code it is."""


@lru_cache(maxsize=128)
def _functions(path: str) -> tuple[tuple[int, int, str], ...]:
    """(first line, last line, name) of every function of a file, outer ones first."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except OSError:
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return tuple(sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes))


def function_at(path: str, line: int) -> str | None:
    """The innermost function around a line; None outside of all and where the file is not there."""
    names = [name for first, last, name in _functions(path) if first <= line <= last]
    return names[-1] if names else None


def function_of(instruction: Instruction) -> str | None:
    """`mma.issue_mma` for an instruction that comes from the file of a role or of a block; None when its line is in a shared file or a
    helper."""
    if instruction.source is None:
        return None
    path, line = Path(instruction.source[0]), instruction.source[1]
    if not ROLE_FOLDERS.intersection(path.parts) or path.stem in SHARED_FILES:
        return None
    name = function_at(str(path), line)
    return None if name is None else f"{path.stem}.{name}"


def functions_of(instructions: Iterable[Instruction]) -> Counter[str]:
    """How many of the instructions come from each function of a role."""
    return Counter(name for one in instructions if (name := function_of(one)) is not None)
