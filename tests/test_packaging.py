"""What `pip install` gets: a wheel with all data and metadata, a source distribution with the whole checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "bench", "docs", "examples")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile", "MANIFEST.in", "mkdocs.yml")
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # a build changes sys.argv
build_meta.build_wheel(folder)
build_meta.build_sdist(folder)
"""


def files_of(checkout: Path) -> set[str]:
    """What the checkout consists of, without what Python and the build leave behind."""
    found = [one for folder in FOLDERS for one in (checkout / folder).rglob("*") if one.is_file()]
    names = {one.relative_to(checkout) for one in found} | {Path(name) for name in FILES}
    return {name.as_posix() for name in names if not any(part == "__pycache__" or part.endswith(".egg-info") for part in name.parts)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built in a copy of the checkout."""
    copy, out = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("built")
    for name in files_of(ROOT):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    done = subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_is_the_package_with_its_data(wheel: zipfile.ZipFile) -> None:
    suffixes = (".py", ".pyi", ".c", ".json", "py.typed")
    want = {name.removeprefix("src/") for name in files_of(ROOT) if name.startswith("src/") and name.endswith(suffixes)}
    got = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert want <= got
    assert {name for name in got if not name.endswith(".md")} == want


def test_the_source_distribution_is_the_checkout(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        names = {one.name.partition("/")[2] for one in file.getmembers() if one.isfile()}
    assert files_of(ROOT) - names == set()


def test_extras_and_metadata(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist", [])
    extras = {extra: {one.split(">=")[0] for one in required if one.endswith(f'extra == "{extra}"')} for extra in ("testing", "dev")}
    assert extras["testing"] == {"hypothesis"}
    assert {"pytest", "ruff", "mypy"} < extras["dev"]
    assert any(one.startswith("nvidia-cuda-nvdisasm") and "extra" not in one for one in required)
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert metadata.get_all("Project-URL")


def test_strategies_without_hypothesis_name_the_extra() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import megamoe_dsl.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == ("ImportError: megamoe_dsl.testing needs hypothesis: pip install 'megamoe_dsl[testing]'")
