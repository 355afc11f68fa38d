"""Modules, classes, public functions and long functions say what they are; no docstring restates a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "megamoe_dsl"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


LONG = 10
"""Lines from which on any function says what it does."""


def is_public(node: Definition) -> bool:
    """A plain name that is no overload and no setter, whose getter speaks for it."""
    decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    return not node.name.startswith("_") and not decorators & {"overload", "setter", "register_fake"}


def needs_docstring(node: Definition, owner: str) -> bool:
    """A class, a function of several statements at the top of a module, or any function of more than `LONG` lines."""
    if isinstance(node, ast.ClassDef):
        return True
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno >= LONG or (owner == "" and len(node.body) > 1)


def restates(node: Definition) -> bool:
    """Whether a docstring adds nothing to a name: a fragment such as "Of a CTA.", or four words or fewer."""
    text = ast.get_docstring(node) or ""
    return bool(text) and "\n" not in text and (text.startswith("Of ") or len(text.split()) <= 4)


def undocumented(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    """Definitions that need a docstring and have none, or have one that restates the name; what is inside a function is nobody else's."""
    for node in body:
        if isinstance(node, Definition) and is_public(node):
            if restates(node) or (needs_docstring(node, owner) and not ast.get_docstring(node)):
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
def f(x):
    x += 1
    return x
def short(): return 1
def _g(): ...
class C:
    "A thing with one method."
    def m(self): ...
    def told(self):
        "Of a CTA."
    @x.setter
    def x(self, y): ...
    def __len__(self): ...
class D:
    "It."
"""
    assert list(undocumented(ast.parse(source).body)) == ["f (line 2)", "C.told (line 10)", "D (line 15)"]
