"""Public names: all of them import, type checkers know the same ones, and README, pages and examples use no others."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import megamoe_dsl

ROOT = Path(__file__).parents[1]
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "lab" not in page.parts)
PAGES = (ROOT / "README.md", *DOCS)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def names_of(module: ModuleType) -> list[str]:
    """`__all__`, or what a module without one defines."""
    plain = [name for name in vars(module) if not name.startswith("_")]
    return list(getattr(module, "__all__", plain))


def public_modules() -> dict[str, list[str]]:
    """Dotted name of every public module and its public names: the root, and what a public module names that is a module of the package."""
    found, pending = {}, [megamoe_dsl]
    while pending:
        module = pending.pop()
        found[module.__name__] = names_of(module)
        values = [getattr(module, name) for name in found[module.__name__]]
        pending += [one for one in values if isinstance(one, ModuleType) and one.__name__.startswith(f"{module.__name__}.")]
    return found


MODULES = public_modules()


def used(source: str) -> set[str]:
    """Dotted names of this package that a program imports: of a module, or of a name in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "megamoe_dsl"}


def is_public(name: str) -> bool:
    """Whether it is a public module, a public name in one, or an attribute of such a name."""
    home, _, last = name.rpartition(".")
    return name in MODULES or last in MODULES.get(home, ()) or (home.count(".") >= 1 and home not in MODULES and is_public(home))


def programs(page: Path) -> list[str]:
    return re.findall(r"(?s)```python\n(.*?)```", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_use_public_names(page: Path) -> None:
    text = page.read_text()
    named = {name for program in programs(page) for name in used(program)} | set(re.findall(r"`(megamoe_dsl(?:\.\w+)+)\b", text))
    assert sorted(name for name in named if not is_public(name)) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_public_names(example: Path) -> None:
    sources = [example.read_text(), *re.findall(r'(?s)= """\n(.*?)"""', example.read_text())]  # one starts a process of its own
    assert sorted(name for source in sources for name in used(source) if not is_public(name)) == []


def test_what_counts_as_public() -> None:
    assert is_public("megamoe_dsl.MegaMoE") and is_public("megamoe_dsl.layouts.Region") and is_public("megamoe_dsl.compat.deep_gemm.utils")
    assert is_public("megamoe_dsl.Problem.hidden") and is_public("megamoe_dsl.device.mbarrier.init")
    assert not is_public("megamoe_dsl.runtime.layer.MegaMoE") and not is_public("megamoe_dsl.layouts.region.Region")
    assert used("import megamoe_dsl.sim\nfrom megamoe_dsl.quant import quantize\nimport torch") == {
        "megamoe_dsl.sim",
        "megamoe_dsl.quant.quantize",
    }


def test_every_name_is_there() -> None:
    missing = [
        f"{module}.{name}" for module, names in MODULES.items() for name in names if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == [] and {"megamoe_dsl.sim", "megamoe_dsl.compat.engines.sglang"} <= set(MODULES)
    assert dir(megamoe_dsl) == sorted(set(megamoe_dsl.__all__) - {"__version__"})


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match=r"module 'megamoe_dsl' has no attribute 'MegaMoe'"):
        megamoe_dsl.MegaMoe  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Swizzle'"):
        exec("from megamoe_dsl.hardware import Swizzle")


def test_import_loads_neither_torch_nor_cutlass() -> None:
    """Of the package, and of its public folders of plain Python."""
    code = """
import sys, megamoe_dsl
from megamoe_dsl import Layout, Problem, compat, device, blocks, schedule
from megamoe_dsl.hardware import SW128
print(sorted({"torch", "cutlass", "numpy", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_layer_loads_neither_the_dsl_nor_torchs_compiler() -> None:
    code = """
import sys
from megamoe_dsl import EpMoE, MegaMoE, MoE, moe
print(sorted({"torch._dynamo", "cutlass", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
