"""Links and file names in the documents lead somewhere, and the index of the documentation names every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINKED = (*PAGES, ROOT / "README.md", ROOT / "bench" / "results" / "README.md", ROOT / "CONTRIBUTING.md")
FILES = [
    f"/{file.relative_to(ROOT).as_posix()}"
    for top in ("src", "bench", "studies", "tests", "examples")
    for file in (ROOT / top).rglob("*.*")
]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|json|md))`", page.read_text())) - ELSEWHERE
    assert {name for name in named if not any(file.endswith(f"/{name}") for file in FILES)} == set()


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert {target for target in targets(index) if "/" not in target} == {page.name for page in PAGES} - {index.name}
