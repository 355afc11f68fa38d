"""What an adapter names of its engine, read from the adapter's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path


def touched(adapter: Iterable[Path], engine: str) -> set[str]:
    """Dotted names: what the adapter imports, the strings that are such names, and the attributes of its variables of an engine's class.

    `Layer = Annotated[Any, "engine.layer.Layer"]` declares such a class; parameters, variables and results of functions may have it.
    """
    dotted = re.compile(rf"{engine}(\.\w+)+")
    return {name for path in adapter for name in _names(ast.parse(path.read_text(encoding="utf-8")), dotted)}


def _names(tree: ast.Module, dotted: re.Pattern[str]) -> Iterator[str]:
    declared = dict(_classes(tree))
    classes = {name: one.value for name, one in declared.items()}
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and dotted.fullmatch(f"{node.module}.x"):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if dotted.fullmatch(one.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and dotted.fullmatch(node.value):
            yield from [node.value] if node not in declared.values() else []
        elif isinstance(node, ast.FunctionDef):
            yield from _attributes(node, classes, functions)


def _classes(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Names that are declared `Annotated[Any, "engine.Class"]`, and where the class of each stands."""
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name("Annotated"), ast.Tuple([_, ast.Constant() as origin]))):
                yield name, origin


def _attributes(function: ast.FunctionDef, classes: dict[str, str], functions: dict[str, ast.FunctionDef]) -> Iterator[str]:
    """Attributes of the classes' objects in a function: of parameters, of variables that are annotated, of what functions return."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    kinds = {one.arg: one.annotation for one in arguments}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kinds[node.target.id] = node.annotation
    for node in ast.walk(function):
        match node:
            case ast.Attribute(ast.Name(owner), name):
                kind = kinds.get(owner)
            case ast.Attribute(ast.Call(ast.Name(called)), name) if called in functions:
                kind = functions[called].returns
            case _:
                continue
        for part in ast.walk(kind) if kind is not None else ():
            if isinstance(part, ast.Name) and part.id in classes:
                yield f"{classes[part.id]}.{name}"
