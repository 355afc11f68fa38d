"""A mutant: one change to the package's sources that a developer could make by mistake."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from anchor import Code, change

PACKAGE = Path(__file__).parents[2] / "src" / "megamoe_dsl"
ARCHS = ("sm_90a", "sm_100a")


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` within `where`.  Both are Python: an expression, `name=value` of a call, or statements; empty `new` drops them.

    Only syntax trees count: the file, line breaks and comments do not. An `if lane == 0: ...` before or behind other statements stands for
    one of any body, which stays.

    name        what is wrong then, in words
    kind        what it stands for: one of `KINDS`
    where       qualified name of what has `old` exactly once: a function, a class, a constant; `MODULE:NAME`, with the end of
                the module's path, where several things of this name have it
    nearest     tests nearest to it, as pytest names them, for a short simulation that shows nothing
    archs       architectures whose short simulation runs it; none where a simulation does not go through what changes
    equivalent  why no check can notice it; empty for a mutant that one must
    escapes     why no check notices it although one could, and what would
    """

    name: str
    kind: str
    where: str
    old: str
    new: str
    nearest: tuple[str, ...] = ()
    archs: tuple[str, ...] = ARCHS
    equivalent: str = ""
    escapes: str = ""

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of the change and the tests that may notice it, the same however the change is written."""
        change_and_tests = (self.where, Code(self.old).normal, Code(self.new).normal, *self.nearest)
        return hashlib.sha256("\0".join(change_and_tests).encode()).hexdigest()[:8]

    def changed(self, package: Path = PACKAGE) -> tuple[Path, str]:
        """A file, from the package's folder, and its mutated text.  Raises MutantError unless `where` has `old` exactly once."""
        return change(package, self.where, Code(self.old), Code(self.new))

    def plant(self, folder: Path) -> Path:
        """A copy of the package with the change, in `folder`/src, which is returned; the sources themselves stay as they are."""
        file, text = self.changed()
        sources = copy_package(folder)
        (sources / PACKAGE.name / file).write_text(text, encoding="utf-8")
        return sources


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
    "wrong order",
    "missing check",
    "incomplete key",
    "lost data",
)


def copy_package(folder: Path) -> Path:
    """A copy of the package as it is in `folder`/src, which is returned."""
    shutil.copytree(PACKAGE, folder / "src" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"
