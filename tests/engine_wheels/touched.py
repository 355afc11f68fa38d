"""What an adapter names of its engine, read from the adapter's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path


def touched(adapter: Path, engine: str) -> set[str]:
    """Dotted names: what the adapter imports, the strings that are such names, and the fields of its protocols.

    A protocol says in its docstring, between backticks, which class of the engine it describes.
    """
    return set(_names(ast.parse(adapter.read_text(encoding="utf-8")), re.compile(rf"{engine}(\.\w+)+")))


def _names(tree: ast.AST, dotted: re.Pattern[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and dotted.fullmatch(f"{node.module}.x"):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if dotted.fullmatch(one.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and dotted.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
            found = re.search(rf"`({dotted.pattern})`", ast.get_docstring(node) or "")
            assert found, f"{node.name}: the docstring of a protocol names the engine's class"
            fields = [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
            yield from (f"{found[1]}.{field}" for field in fields)
