"""Modules that stand in for an engine's, in tests without its wheel: they have nothing that the record does not have."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import pytest
from record import Record


def stand_in(patch: pytest.MonkeyPatch, engine: str, values: Mapping[str, object]) -> None:
    """Puts modules with these attributes, by dotted name, in sys.modules; raises AssertionError for a name or a function's arguments that
    are not the record's."""
    names = Record.load(engine).names
    for dotted, value in values.items():
        assert dotted in names, f"{dotted} is not in the record"
        if isinstance(value, FunctionType):
            assert arguments_of(value) == names[dotted], dotted
        module, _, name = dotted.rpartition(".")
        if module not in sys.modules:
            patch.setitem(sys.modules, module, ModuleType(module))
        patch.setattr(sys.modules[module], name, value, raising=False)


def arguments_of(function: Callable[..., Any]) -> str:
    """As the record has them: without annotations."""
    signature = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(inspect.Signature(bare))[1:-1]
