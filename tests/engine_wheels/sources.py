"""What Python files declare, read without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

Node = ast.stmt | ast.alias


class Sources:
    """The modules below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tree = lru_cache(None)(lambda path: ast.parse(path.read_text(encoding="utf-8")))

    def signature(self, name: str) -> str | None:
        """Arguments of a function, fields or constructor arguments of a class, the value of a constant, "module", or "attribute" of what a
        class reads or writes; None for a name that is not there.  `name` is dotted, from the package on.
        """
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            if path := self._file(parts[:count]):
                return self._within(path, parts[:count], parts[count:])
        return None

    def _file(self, module: list[str]) -> Path | None:
        base = self.folder.joinpath(*module)
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def _within(self, path: Path, module: list[str], rest: list[str]) -> str | None:
        if not rest:
            return "module"
        for node in statements(self._tree(path).body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == rest[0]:
                        package = module if path.name == "__init__.py" else module[:-1]
                        origin = package[: len(package) - node.level + 1] if node.level else []
                        return self.signature(".".join([*origin, *(node.module or "").split("."), alias.name, *rest[1:]]).strip("."))
            elif rest[0] in names_of(node):
                return describe(node, rest[1:])
        return None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module or class, including what stands under `if`, `try` and `with`."""
    for node in body:
        yield node
        for field in ("body", "orelse", "handlers", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = getattr(node, field, [])
                yield from statements([s for one in inner for s in (one.body if isinstance(one, ast.ExceptHandler) else [one])])


def names_of(node: ast.stmt) -> list[str]:
    """What a statement declares."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [one.id for one in targets if isinstance(one, ast.Name)]


def describe(node: ast.stmt, inner: list[str]) -> str | None:
    """As `Sources.signature`, of a declaration, or of what lies in a class."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None if inner else ast.unparse(bare(node.args))
    if isinstance(node, ast.ClassDef):
        members = list(statements(node.body))
        if inner:
            found = next((one for one in members if inner[0] in names_of(one)), None)
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                return describe(found, inner[1:])
            return "attribute" if mentions(node, inner[0]) else None
        made = next((one for one in members if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        fields = [one.target.id for one in members if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        return ast.unparse(bare(made.args)) if made else ", ".join(fields)
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return None if inner or value is None else ast.unparse(value)


def bare(arguments: ast.arguments) -> ast.arguments:
    """Without annotations."""
    for one in ast.walk(arguments):
        if isinstance(one, ast.arg):
            one.annotation = None
    return arguments


def mentions(node: ast.ClassDef, name: str) -> bool:
    """Whether a class has an attribute, or a string, of that name: layers get parameters by name."""
    return any(
        (isinstance(one, ast.Attribute) and one.attr == name)
        or (isinstance(one, ast.Constant) and one.value == name)
        or (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id == name)
        for one in ast.walk(node)
    )
