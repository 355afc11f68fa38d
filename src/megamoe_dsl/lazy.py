"""Names that load on first use.  A package lists its public names once, as imports in the `__init__.pyi` beside its `__init__.py`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of the package with this `__name__` and `__file__`."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.level]
    # By name the module, relative to the package; empty of a name that is a module of the package.
    homes = {alias.name: node.module or "" for node in imports for alias in node.names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes[name]:
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return sorted(homes), load, lambda: sorted(homes)


def find(name: str, package: str = __package__) -> Callable[..., Any]:
    """The function that "module.function" names; the module is relative to `package`."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(f".{module}", package), function)
    return found


def late(name: str, *others: str) -> Any:
    """A method that imports the function `name` when it is called, and passes its own arguments and the functions `others` to it.  With it,
    parts of configurations can be read without the DSL."""

    def call(part: Any, *args: Any, **named: Any) -> Any:
        return find(name)(*args, *map(find, others), **named)

    return call
