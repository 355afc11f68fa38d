"""How large the tree is and how tangled: `python tests/house.py` prints measures, each with the bound that `test_house.py` holds.

Every measure is read from the sources; nothing is imported. A file's lines include comments and blank lines.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from structure import PACKAGE, family_imports, imports, modules

ROOT = PACKAGE.parents[1]
BOUNDS = {
    "kernels: lines that describe": (5_490, 5_500),
    "kernels: configuration classes": (12, 12),
    "kernels: configuration classes and their bases": (16, None),
    "kernels: functions that launch": (1, 1),
    "kernels: ancestors of a configuration class": (3, 3),
    "kernels: imports from one family into another": (0, 0),
    "kernels: isinstance in families and main loops": (0, 0),
    "kernels: modules below kernels/moe/sm90/kernel.py": (40, 40),
    "package: lines": (47_983, 48_000),
    "package: modules": (362, None),
    "package: modules under 40 lines": (49, None),
    "package: lines of bench": (1_936, 2_500),
    "bench/results: files": (60, 60),
}
"""The most that the test allows, and the goal (None: no number is set). A bound falls with its measure, down to the goal."""

DESCRIBES = re.compile("config|plan|kernel|family|context|choose|arguments|maps|problem|measures")
COMPUTES = re.compile(r"(\w+_)?(family|math|share)(_\w+)?")
SHORT = 40
KERNEL = "kernels.moe.sm90.kernel"


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def lines_of(module: str) -> int:
    return len(modules()[module].read_text(encoding="utf-8").splitlines())


def below(*folders: str) -> list[str]:
    """Modules of these folders of the package."""
    return [module for module in modules() if any(f"{module}.".startswith(f"{folder}.") for folder in folders)]


def lines_that_describe() -> tuple[int, int]:
    """Lines of `kernels/` and `blocks/gemm` in files that describe a kernel, and all their lines.

    Such a file has one of the words of `DESCRIBES` in its name (`smem_plan.py`, `choose.py`; `kernel.py` is the shell of roles) or lies in
    a folder `layouts`.
    """
    every = below("kernels", "blocks.gemm")
    describing = [module for module in every if DESCRIBES.search(modules()[module].stem) or ".layouts." in module]
    return sum(map(lines_of, describing)), sum(map(lines_of, every))


def calls(function: ast.AST, name: str) -> bool:
    """Whether it calls `name` or `anything.name`."""
    return any(isinstance(node, ast.Call) and last_name(node.func) == name for node in ast.walk(function))


def last_name(node: ast.expr) -> str:
    """`C` of `C`, `a.b.C`, `C[T]` and `C(...)`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


@cache
def bases() -> dict[str, tuple[str, ...]]:
    """Classes of the package and the classes of the package from which each derives; no two classes have one name."""
    nodes = [node for module in modules() for node in ast.walk(tree_of(module)) if isinstance(node, ast.ClassDef)]
    names = {node.name for node in nodes}
    return {node.name: tuple(base for base in map(last_name, node.bases) if base in names) for node in nodes}


def ancestors(name: str) -> frozenset[str]:
    """The class itself and all classes of the package from which it derives."""
    return frozenset({name}).union(*(ancestors(base) for base in bases()[name]))


def configurations() -> set[str]:
    """Classes that families of kernels declare as their `configs`, one for an architecture, or take when they are made."""
    named: set[str] = set()
    for node in (node for module in below("kernels") for node in ast.walk(tree_of(module))):
        declared = node.value if isinstance(node, ast.AnnAssign) and last_name(node.target) == "configs" else None
        made = node if isinstance(node, ast.Call) and last_name(node.func).endswith("Kernel") else None
        if found := declared or made:
            named |= {one.id for one in ast.walk(found) if isinstance(one, ast.Name) and one.id.endswith("Config")}
    return named & set(bases())


def with_bases(classes: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*map(ancestors, classes))


def decorated(node: ast.FunctionDef, name: str) -> bool:
    return any(last_name(one) == name for one in node.decorator_list)


def launch_functions() -> list[str]:
    """Host functions that launch a kernel: what `cute.jit` decorates or wraps, and calls `launch`."""
    return [
        f"{module}.{node.name}"
        for module in below("kernels", "blocks", "device")
        for node in jitted(tree_of(module))
        if calls(node, "launch")
    ]


def jitted(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions under `@cute.jit`, and those that are given to `cute.jit(...)`."""
    wrapped = {
        last_name(one) for node in ast.walk(tree) if isinstance(node, ast.Call) and last_name(node.func) == "jit" for one in node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (decorated(node, "jit") or node.name in wrapped):
            yield node


def questions_for_a_type() -> int:
    """`isinstance` in `family.py` and in main loops (`math.py`, `share.py`), where a method of the part would answer."""
    asked = [module for module in below("kernels", "blocks") if COMPUTES.fullmatch(module.rpartition(".")[2])]
    return sum(
        isinstance(node, ast.Call) and last_name(node.func) == "isinstance" for module in asked for node in ast.walk(tree_of(module))
    )


def reached(module: str) -> set[str]:
    """Modules of the package that importing this one may load, itself left out."""
    found: set[str] = set()
    open_ends = [module]
    while open_ends:
        new = imports()[open_ends.pop()] - found
        found |= new
        open_ends += new
    return found - {module}


@cache
def measures() -> dict[str, int]:
    """The table's first column."""
    classes = configurations()
    return {
        "kernels: lines that describe": lines_that_describe()[0],
        "kernels: configuration classes": len(classes),
        "kernels: configuration classes and their bases": len(with_bases(classes)),
        "kernels: functions that launch": len(launch_functions()),
        "kernels: ancestors of a configuration class": max(len(ancestors(name)) for name in classes),
        "kernels: imports from one family into another": len(family_imports()),
        "kernels: isinstance in families and main loops": questions_for_a_type(),
        "kernels: modules below kernels/moe/sm90/kernel.py": len(reached(KERNEL)),
        "package: lines": sum(map(lines_of, modules())),
        "package: modules": len(modules()),
        "package: modules under 40 lines": sum(lines_of(module) < SHORT for module in modules()),
        "package: lines of bench": sum(map(lines_of, below("bench"))),
        "bench/results: files": sum(path.is_file() for path in (ROOT / "bench/results").rglob("*")),
    }


def table() -> str:
    """Every measure with its bound and its goal, as Markdown."""
    rows = [f"| {name} | {value:,} | {BOUNDS[name][0]:,} | {goal_of(name)} |" for name, value in measures().items()]
    return "\n".join(["| measure | today | bound | goal |", "|---|---|---|---|", *rows])


def goal_of(name: str) -> str:
    goal = BOUNDS[name][1]
    return "" if goal is None else f"{goal:,}"


if __name__ == "__main__":
    print(table())
