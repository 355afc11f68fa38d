"""Figures in the documents are those of the results files, and of the compiler."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from megamoe_dsl.bench.session import without_folders
from megamoe_dsl.cli.app import app
from results_table import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


@pytest.mark.parametrize(
    ("document", "files"),
    [
        ("README.md", ("time-20261122-005241", "time-20261122-005313")),
        ("docs/hopper.md", ("trace-20261122-002058", "trace-20261122-002113")),
    ],
)
def test_document_has_the_table(document: str, files: tuple[str, ...]) -> None:
    rows = table([RESULTS / f"mega_moe_sm90-{one}.json" for one in files])
    assert len(rows.splitlines()) == 14
    assert rows in (ROOT / document).read_text()


def test_results_files_that_documents_name_exist() -> None:
    for document in ("README.md", "docs/hopper.md", "docs/rowwise.md"):
        text = (ROOT / document).read_text()
        named = [part.split(")")[0] for part in text.split("bench/results/")[1:]]
        assert all((RESULTS / name.split("`")[0]).exists() for name in named if name.split("`")[0].endswith(".json") and "FILE" not in name)


def test_index_of_results_names_every_file_once_and_no_other() -> None:
    named = re.findall(r"`([a-z0-9_]+-[a-z0-9-]*\d{8}-\d{6})`", (RESULTS / "README.md").read_text())
    assert sorted(named) == sorted(file.stem for file in RESULTS.glob("*.json"))


def test_results_name_no_folder_of_a_machine() -> None:
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from texts(one)
        elif isinstance(value, str):
            yield value

    for file in RESULTS.glob("*.json"):
        assert [text for text in texts(json.loads(file.read_text())) if without_folders(text) != text] == [], file.name


def test_readme_shows_what_the_compiler_made() -> None:
    command = "inspect --preset flash --tokens 128 --block-m 64"
    readme = (ROOT / "README.md").read_text()
    assert f"megamoe {command}`" in readme
    lines = [line.rstrip() for line in CliRunner().invoke(app, command.split()).output.splitlines()]
    edges = ("Instructions per unit", "A tile is counted")
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(text)) for text in edges)
    assert "\n".join(lines[first : last + 1]) in readme


def test_readme_shows_what_the_demo_prints() -> None:
    """All but times."""

    def lines(text: str) -> list[str]:
        rows = [" ".join(re.sub(r"\b\d+\.\d+( s;|\s*$)", "TIME", line).split()) for line in text.splitlines()]
        return [row for row in rows if row and "─" not in row]

    readme = (ROOT / "README.md").read_text()
    command = re.search(r"`megamoe (simulate [^`]*)`", readme)
    assert command is not None
    shown = readme[readme.index("```\nArtifact\n") + 4 : readme.index("no race found\n```")] + "no race found"
    printed = CliRunner().invoke(app, command[1].split()).output
    assert lines(printed)[-len(lines(shown)) :] == lines(shown)
