"""A mutant: one change to the package's sources that a developer could make by mistake."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "megamoe_dsl"
ARCHS = ("sm_90a", "sm_100a")


class MutantError(ValueError):
    """A mutant does not fit the sources as they are."""


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in `file`, where it stands exactly once.

    name        what is wrong then, in words
    kind        what it stands for: one of `KINDS`
    file        from the package's folder
    nearest     tests nearest to it, as pytest names them, for a short simulation that shows nothing
    archs       architectures whose short simulation runs it; none where a simulation does not go through the file
    equivalent  why no check can notice it; empty for a mutant that one must
    escapes     why no check notices it although one could, and what would
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    nearest: tuple[str, ...] = ()
    archs: tuple[str, ...] = ARCHS
    equivalent: str = ""
    escapes: str = ""

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of the change and the tests that may notice it."""
        return hashlib.sha256("\0".join((self.file, self.old, self.new, *self.nearest)).encode()).hexdigest()[:8]

    def source(self) -> str:
        """The mutated file's text.  Raises MutantError unless `old` stands in it exactly once."""
        text = (PACKAGE / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise MutantError(f"{self.name}: {self.file} has the old text {text.count(self.old)} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)

    def plant(self, folder: Path) -> Path:
        """A copy of the package with the change, in `folder`/src, which is returned; the sources themselves stay as they are."""
        text = self.source()
        copy_package(folder)
        (folder / "src" / PACKAGE.name / self.file).write_text(text, encoding="utf-8")
        return folder / "src"


KINDS = (
    "off by one",
    "wrong base",
    "wrong scope",
    "missing order",
    "wrong phase",
    "stale buffer",
    "missing clean-up",
    "too narrow",
    "wrong number",
    "wrong launch",
)


def copy_package(folder: Path) -> Path:
    """A copy of the package as it is in `folder`/src, which is returned."""
    shutil.copytree(PACKAGE, folder / "src" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"
