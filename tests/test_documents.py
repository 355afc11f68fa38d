"""Links, file names and imports in the documents lead somewhere, the index of the documentation names every page, and its tour runs."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = (ROOT / "README.md", ROOT / "bench" / "results" / "README.md", ROOT / "CONTRIBUTING.md")
LINKED = (*PAGES, *OTHERS, *sorted((ROOT / "src").rglob("*.md")))
FILES = [f"/{file.relative_to(ROOT).as_posix()}" for top in ("src", "bench", "tests", "examples") for file in (ROOT / top).rglob("*.*")]
ELSEWHERE = {"mega/__init__.py"}  # DeepGEMM's


def targets(page: Path) -> list[str]:
    return [one for one in re.findall(r"\]\(([^)\s]+)[^)]*\)", page.read_text()) if "://" not in one]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?s)```.*?```", "", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in targets(page):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|json|md))`", page.read_text())) - ELSEWHERE
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in FILES)} == set()


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target in targets(index)}
    assert set(PAGES) - {index} <= named


def python_of(page: Path) -> list[str]:
    """The page's blocks of Python."""
    return re.findall(r"(?s)```python\n(.*?)```", page.read_text())


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_imports_is_there(page: Path) -> None:
    trees = [ast.parse(block) for block in python_of(page)]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "megamoe_dsl" in str(node.module)]
    for node in imports:
        home = importlib.import_module(str(node.module))
        assert [one.name for one in node.names if not hasattr(home, one.name)] == []


def test_the_layer_runs_without_a_gpu_as_pasted() -> None:
    (tour,) = (block for block in python_of(ROOT / "docs" / "howto" / "layer.md") if "SimulatedMoE" in block)
    names: dict[str, Any] = {}
    exec(tour, names)
    assert names["report"].findings == []
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(names["y"], names["case"].reference().y, strict=True))


@pytest.mark.parametrize(("page", "blocks"), [("explanation/layouts.md", 2), ("tutorials/first_layer.md", 2), ("howto/train.md", 2)])
def test_the_first_blocks_run_without_a_gpu(page: str, blocks: int) -> None:
    names: dict[str, Any] = {}
    for block in python_of(ROOT / "docs" / page)[:blocks]:
        exec(block, names)
    assert "y" not in names or names["y"].isfinite().all()
