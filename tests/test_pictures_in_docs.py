"""The README's pictures are what the code draws."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megamoe_dsl.cli import app

ROOT = Path(__file__).parent.parent
SHOWN = re.findall(r"\(docs/pictures/(\w+)\.svg\)", (ROOT / "README.md").read_text())


def test_the_readme_shows_them_all():
    assert len(SHOWN) == 4
    assert {path.stem for path in (ROOT / "docs/pictures").glob("*.svg")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_picture_is_current(name, tmp_path):
    file = tmp_path / "now.svg"
    assert CliRunner().invoke(app, ["layout", name, "--preset", "flash", "--tokens", "128", "--svg", str(file)]).exit_code == 0
    assert file.read_text() == (ROOT / f"docs/pictures/{name}.svg").read_text(), "run `make pictures`"
