"""Stand-ins for compiled packages, so that an engine's Python files can be imported without them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wheel import Wheel


class _StubType(type):
    def __getattr__(cls, name: str) -> Any:
        return stub(name)


class Stub(metaclass=_StubType):
    """Has every attribute, and is false; a call with one function, as of a decorator, returns that."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __init_subclass__(cls, **_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return stub(name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not options else self

    def __getitem__(self, key: object) -> Stub:
        return self

    def __or__(self, other: object) -> Stub:
        return self

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


def stub(name: str) -> Any:
    """A class for a name in capitals, otherwise a value.  Raises AttributeError for what Python asks for."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _StubType(name, (Stub,), {}) if name[:1].isupper() else Stub()


class StubModule(ModuleType):
    """A module or package with every attribute."""

    __version__ = "0.0.0"
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        value = stub(name)
        setattr(self, name, value)
        return value


class StubFinder(MetaPathFinder, Loader):
    """Finds packages by name, with all modules in them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def importable(wheel: Wheel) -> Iterator[None]:
    """The engine's own modules can be imported; in a process of its own, for what it imports stays."""
    finder, paths = StubFinder(wheel.stubs), [str(wheel.sources), str(wheel.site)]
    sys.meta_path.append(finder)
    sys.path[:] = [paths[0], *sys.path, paths[1]]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = [one for one in sys.path if one not in paths]
