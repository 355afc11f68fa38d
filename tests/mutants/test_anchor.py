"""Changes find their place by structure, whatever the file, the line breaks and the comments."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest
from anchor import Code, MutantError, change, definitions

LOAD = '''
    """A module."""
    STAGES = 4
    if STAGES:
        if STAGES > 1:
            def halves(): return STAGES / 2
    NAMES[STAGES] = "stages"

    class Loader:
        rows: int = 128

        def load(self, ring):
            """Waits."""
            for stage in ring:
                if stage.free:
                    wait(
                        stage.barrier,  # until it is empty
                        phase=stage.phase ^ 1,
                    )
                    fence()
                # two copies
                copy("tokens", stage)
                fence()
            return ring
'''
STORE = """
    def load(ring):
        fence()

    def outer():
        count = 1

        @traced(depth=2)
        def inner():
            count = 2
            return f(count=2)

        return inner
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in (("a/load.py", LOAD), ("b/load.py", STORE)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(dedent(text))
    return tmp_path


@pytest.mark.parametrize(
    ("where", "old", "new", "expected"),
    [
        ("STAGES", "4", "5", "STAGES = 5"),
        ("halves", "return STAGES / 2", "", "pass"),
        ("Loader.rows", "128", "64", "rows: int = 64"),
        ("Loader", "rows: int = 128", "", ""),
        ("Loader.load", "stage.phase ^ 1", "stage.phase", "phase=stage.phase)"),
        ("Loader.load", "phase=stage.phase ^ 1", "phase=0", "phase=0)"),
        ("Loader.load", "wait(stage.barrier, phase=stage.phase ^ 1)", "pass", "pass"),
        ("Loader.load", "copy('tokens', stage); fence()", "fence(); copy('tokens', stage)", "fence()\n            copy('tokens', stage)"),
        ("Loader.load", "if stage.free: ...\ncopy('tokens', stage)", "if stage.free: ...", ""),
        ("Loader.load", "stage.free", "not stage.free", "if not stage.free:"),
        ("outer", "count = 1", "", ""),
        ("outer.inner", "depth=2", "depth=3", "@traced(depth=3)"),
        ("outer", "@traced(depth=2)\ndef inner(): ...\nreturn inner", "@traced(depth=2)\ndef inner(): ...\nreturn 0", "return 0"),
        ("b.load:load", "fence()", "pass", "pass"),
    ],
)
def test_what_is_changed(package: Path, where: str, old: str, new: str, expected: str) -> None:
    """The tree changes, and comments elsewhere stay."""
    file, text = change(package, where, Code(old), Code(new))
    before = (package / file).read_text()
    assert expected in ast.unparse(ast.parse(text)) and ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))
    assert ("# two copies" in text) == ("# two copies" in before)


def test_a_moved_and_wrapped_function_is_found(package: Path) -> None:
    where, old, new = "Loader.load", Code("wait(stage.barrier, phase=stage.phase ^ 1); fence()"), Code("fence()")
    assert change(package, where, old, new)[0] == Path("a/load.py")
    (package / "c.py").write_text(ast.unparse(ast.parse((package / "a/load.py").read_text())).replace("Waits.", ""))
    (package / "a/load.py").unlink()
    definitions.cache_clear()
    assert change(package, where, old, new)[0] == Path("c.py")


def test_where_several_have_the_name_the_code_decides(package: Path) -> None:
    (package / "c.py").write_text("def load(ring):\n    pass\n")
    assert change(package, "load", Code("fence()"), Code(""))[0] == Path("b/load.py")
    (package / "c.py").write_text("def load(ring):\n    fence()\n")
    definitions.cache_clear()
    with pytest.raises(MutantError, match=r"load \(in b.load, c\) has this 2 times"):
        change(package, "load", Code("fence()"), Code(""))
    assert change(package, "c:load", Code("fence()"), Code(""))[0] == Path("c.py")


@pytest.mark.parametrize(
    ("where", "old", "new", "error"),
    [
        ("Loader.store", "fence()", "", "Loader.store names nothing"),
        ("c.load:load", "fence()", "", "c.load:load names nothing"),
        ("Loader.load", "fence()", "", r"Loader.load \(in a.load\) has this 2 times, not once:\nfence\(\)"),
        ("Loader.load", "store()", "", "has this 0 times"),
        ("Loader.load", "", "fence()", "has this 0 times"),
        ("outer.inner", "count=2", "count=3", "has this 2 times"),
        ("load", "wait(", "", "not Python"),
        ("Loader.load", "if stage.free: ...\nfence()", "fence()", "elided is not the same"),
        ("Loader.load", "a()\nif b: ...\nc()", "c()\nif b: ...\na()", "not within it"),
    ],
)
def test_what_does_not_fit_is_refused(package: Path, where: str, old: str, new: str, error: str) -> None:
    with pytest.raises(MutantError, match=error):
        change(package, where, Code(old), Code(new))
