"""Every public class and function of the package says what it is: shapes, units, errors where there are any."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "megamoe_dsl"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_public(node: Definition) -> bool:
    """A plain name that is no overload and no setter, whose getter speaks for it."""
    decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    return not node.name.startswith("_") and not decorators & {"overload", "setter", "register_fake"}


def undocumented(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    """Public classes, functions and methods without a docstring; what is inside a function is nobody else's."""
    for node in body:
        if isinstance(node, Definition) and is_public(node):
            if not ast.get_docstring(node):
                yield f"{owner}{node.name} (line {node.lineno})"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{owner}{node.name}.")


def missing_in(path: Path) -> list[str]:
    return list(undocumented(ast.parse(path.read_text(encoding="utf-8")).body))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)
def test_public_definitions_are_documented(path: Path) -> None:
    assert missing_in(path) == []


def test_what_counts() -> None:
    source = """
def f(): ...
def _g(): ...
class C:
    "It."
    def m(self): ...
    @x.setter
    def x(self, y): ...
    def __len__(self): ...
"""
    assert list(undocumented(ast.parse(source).body)) == ["f (line 2)", "C.m (line 6)"]
