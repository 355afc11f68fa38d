"""The pictures in README and docs are what the code draws."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draw_results import picture
from draw_structure import draw
from megamoe_dsl.cli.app import app
from megamoe_dsl.pictures.svg import to_svg

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/pictures"
DRAWN = {name: options for name, *options in map(str.split, (FOLDER / "drawn.txt").read_text().splitlines())}
"""What `make pictures` draws, with the options of `megamoe layout`."""
STRUCTURE, RESULTS = "structure", "results"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
MOST_BYTES = 150_000
WIDTH = 900


def test_every_picture_is_drawn_and_shown():
    shown = {name for page in PAGES for name in re.findall(r"pictures/(\w+)\.svg\)", page.read_text(encoding="utf-8"))}
    assert {path.stem for path in FOLDER.glob("*.svg")} == {*DRAWN, STRUCTURE, RESULTS} == shown
    assert "<docs/pictures/drawn.txt" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", DRAWN)
def test_picture_is_current(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "now.svg"
    result = CliRunner().invoke(app, ["layout", name, *DRAWN[name], "--svg", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text(encoding="utf-8") == (FOLDER / f"{name}.svg").read_text(encoding="utf-8"), "run `make pictures`"


def test_structure_is_current():
    assert draw() == (FOLDER / f"{STRUCTURE}.svg").read_text(encoding="utf-8"), "run `make pictures`"


def test_results_are_those_of_the_records():
    assert to_svg(picture()) + "\n" == (FOLDER / f"{RESULTS}.svg").read_text(encoding="utf-8"), "run `make pictures`"


@pytest.mark.parametrize("name", [*DRAWN, STRUCTURE, RESULTS])
def test_picture_fits_a_page(name):
    file = FOLDER / f"{name}.svg"
    assert file.stat().st_size < MOST_BYTES
    assert float(ElementTree.fromstring(file.read_text(encoding="utf-8")).get("width")) == WIDTH
