"""The modules of the simulator import each other without a circle, imports for types and inside functions included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import megamoe_dsl.sim

PACKAGE = megamoe_dsl.sim.__name__
ROOT = Path(megamoe_dsl.sim.__file__).parent


def module_files(root: Path, package: str) -> dict[str, Path]:
    """Source files of a package by module name."""
    parts = {path: (package, *path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")}
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts.items()}


def imports(name: str, path: Path, known: set[str]) -> set[str]:
    """The modules of `known` that a module imports anywhere in its text."""
    home = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = home[: len(home) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= (names & known) or {base}
    return found & known - {name}


def graph(root: Path, package: str) -> dict[str, set[str]]:
    """What each module of a package imports of the package."""
    files = module_files(root, package)
    return {name: imports(name, path, set(files)) for name, path in files.items()}


def test_the_simulator_has_no_import_circle():
    modules = graph(ROOT, PACKAGE)
    assert {f"{PACKAGE}.race", f"{PACKAGE}.interfaces", f"{PACKAGE}.ops", f"{PACKAGE}.ops.tensor"} <= set(modules)
    assert f"{PACKAGE}.race" in modules[f"{PACKAGE}.interfaces"]
    assert len(list(TopologicalSorter(modules).static_order())) == len(modules)


@pytest.mark.parametrize(
    "text", ["from . import b", "def f():\n    from .b import x", "if TYPE_CHECKING:\n    import p.b", "from p import b"]
)
def test_every_kind_of_import_counts(text, tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text("from .a import y")
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph(tmp_path, "p")).static_order())
