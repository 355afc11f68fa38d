"""CONTRIBUTING's walls, read from the sources: who imports whom, no circles, small files, one class a name.

Imports inside functions and those for types alone count as any other.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from house import reached
from megamoe_dsl.artifact.store import SOURCES
from structure import MAY_IMPORT, PACKAGE, circle, family_imports, imports, modules

ROOT = PACKAGE.parents[1]
MOST_LINES = 400


def home(module: str) -> str:
    """Folder or file at the top of the package."""
    return module.split(".")[0]


@pytest.mark.parametrize("folder", sorted({home(module) for module in modules()} - {"", "cli", "__main__"}))
def test_imports_point_one_way(folder: str) -> None:
    wrong = {
        f"{module} -> {other}"
        for module, others in imports().items()
        for other in others
        if home(module) == folder and home(other) not in {folder, "", *MAY_IMPORT[folder]}
    }
    assert wrong == set()


def test_families_share_nothing_but_blocks() -> None:
    """What two folders of `kernels/` need is a block."""
    assert family_imports() == set()


def test_folders_form_no_circle() -> None:
    assert circle({folder: frozenset(others) for folder, others in MAY_IMPORT.items()}) == []


def test_modules_form_no_circle() -> None:
    assert circle(imports()) == []


def test_a_circle_is_found() -> None:
    ring = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"d", "b"}), "d": frozenset()}
    assert circle(ring) == ["b", "c", "b"]
    assert circle({**ring, "c": frozenset({"d"})}) == []


def test_every_folder_has_its_row() -> None:
    assert {home(module) for module in modules()} - {"", "cli", "__main__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("top", ["src", "tests", "bench", "examples"])
def test_files_are_read_in_one_sitting(top: str) -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in (ROOT / top).rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
    assert lengths


def test_no_file_is_called_utils() -> None:
    assert [path for path in modules().values() if path.stem in ("utils", "util", "helpers", "misc", "common_utils")] == []


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(set)
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_only_a_kernels_own_file_knows_its_warps() -> None:
    """Warp numbers and register counts are in `kernel.py` of an architecture."""
    pattern = re.compile(r"\bset_max_registers\(|\b[A-Z]+_WARP\b *[,=]|\bWarpRole\(|\bone_warp\(")
    found = {module for module, path in modules().items() if home(module) in ("kernels", "blocks") and pattern.search(path.read_text())}
    layers = ("sm100", "sm90", "unfused", "halves")
    shared = {"blocks.cta", "blocks.sm100.pair_warps"}
    assert found - shared == {f"kernels.{one}.kernel" for one in ("gemm", "decode", *(f"moe.{layer}" for layer in layers))}


@pytest.mark.parametrize("folder", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()))
def test_the_table_of_folders_names_each_once(folder: str) -> None:
    table = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| [`")]
    assert sum(f"[`{folder}/`]" in line for line in table) == 1


@pytest.mark.parametrize("kernel", sorted(name for name in modules() if re.search(r"^kernels\..*\.kernel$", name)))
def test_no_kernel_knows_how_it_is_chosen(kernel: str) -> None:
    assert {one for one in reached(kernel) if re.search(r"(^|\.)(choose|tuned|json_file|registry)(\.|$)", one)} == set()


def test_the_words_of_the_field_are_used() -> None:
    """Names that CONTRIBUTING's table has replaced do not come back."""
    gone = re.compile(
        r"\b(deal_tiles|take_tickets?|give_back|pass_by|blocks_taken|has_few|choose_lead|unsettled|l[12]_(acts|sf|arrival_\w+))\b"
    )
    files = [*modules().values(), *Path(ROOT / "tests").rglob("*.py")]
    assert {(path.name, found[0]) for path in files if path != Path(__file__) for found in gone.finditer(path.read_text())} == set()


def test_what_kernels_come_from_is_in_the_digest_of_their_sources() -> None:
    """A module that is not would change a kernel without making those that are stored stale.  The others choose a configuration, which is
    part of a kernel's name itself, put weights in the order of kernels on the host, read machine code, load
    names on first use, or keep signals from the compiler."""
    digested = [PACKAGE / name for name in SOURCES]
    inside = {name: any(place == path or place in path.parents for place in digested) for name, path in modules().items()}
    reached = {other for name, of_sources in inside.items() if of_sources for other in imports()[name]}
    assert {home(name) for name in reached if not inside[name]} - {""} == {"artifact", "interrupts", "lazy", "quant", "sass", "tuned"}
    assert inside["kernels.gemm.kernel"] and inside["artifact.compile"] and not inside["cli"]
