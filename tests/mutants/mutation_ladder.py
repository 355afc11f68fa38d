"""The checks that a mutant meets, cheapest first: a short simulation on each architecture, then the tests nearest to it.

Where it is known what noticed a mutant before, that check comes before all others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchor import MutantError
from mutant import PACKAGE, Mutant, copy_package

from megamoe_dsl.bench.results import without_folders

ROOT = PACKAGE.parents[1]
TESTS = ROOT / "tests"
SIMULATION = Path(__file__).with_name("short_simulation.py")
LIMIT_SECONDS = 1800
PASSED, FAILED = 0, 1  # of pytest


@dataclass(frozen=True)
class Outcome:
    """How a mutant went.

    by       what noticed it: `simulation on ARCH`, or a test as pytest names it; empty when nothing did
    sign     what it said
    seconds  that all checks took
    """

    kernel: str
    name: str
    digest: str
    by: str
    sign: str
    seconds: float

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {"level": "source", **asdict(self)}


def climb(kernel: str, mutant: Mutant, before: str = "") -> Outcome:
    """The first check that notices.  `before`: the `by` of an earlier outcome, tried first.

    Raises:
        MutantError: the mutant does not fit the sources, or a check cannot be run.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        by, sign = _first_notice(kernel, mutant, mutant.plant(Path(folder)), before)
    return Outcome(kernel, mutant.name, mutant.digest, by, without_folders(sign), round(time.monotonic() - start, 1))


def _first_notice(kernel: str, mutant: Mutant, sources: Path, before: str) -> tuple[str, str]:
    checks = [*(f"simulation on {arch}" for arch in mutant.archs), *mutant.nearest]
    if any(before.startswith(check) for check in checks):
        checks = [before, *(check for check in checks if check != before)]
    for check in checks:
        if check.startswith("simulation on "):
            if (sign := simulate(kernel, check.removeprefix("simulation on "), sources)) is not None:
                return check, sign
        elif (found := run_test(check, sources)) is not None:
            return found
    return "", ""


def sound(kernel: str, arch: str) -> bool:
    """Whether the short simulation finds nothing in the package as it is."""
    with tempfile.TemporaryDirectory() as folder:
        return simulate(kernel, arch, copy_package(Path(folder))) is None


def simulate(kernel: str, arch: str, sources: Path) -> str | None:
    """The sign of the family's short simulation with these sources."""
    done = _run([sys.executable, str(SIMULATION), kernel, arch], sources)
    if done.returncode:
        return f"{_last_line(done.stderr)}"
    sign: str | None = json.loads(done.stdout.splitlines()[-1])
    return sign


def run_test(test: str, sources: Path) -> tuple[str, str] | None:
    """A failing test of those that pytest finds by this name, and how it failed; None when all pass.

    Raises:
        MutantError: pytest cannot run it.
    """
    of_sweep = ["-m", "not gpu"] if "::" in test else []  # what is named runs, whatever the suite leaves out
    done = _run([sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *of_sweep, test], sources)
    if done.returncode == PASSED:
        return None
    named = re.search(r"^FAILED (\S.*?)(?: - (.*))?$", done.stdout, re.M)
    if done.returncode != FAILED or named is None:
        raise MutantError(f"{test} cannot be run: {_last_line(done.stdout + done.stderr)}")
    error = re.search(r"^E\s+(.*)$", done.stdout, re.M)
    return named[1], named[2] or (error[1] if error else "")


def _run(command: list[str], sources: Path) -> subprocess.CompletedProcess[str]:
    """In the tree, but with the package from `sources`, and no kernel of other sources in its cache."""
    paths = [sources, *(TESTS / name for name in ("mutants", "kernels", "runtime", "gpu")), TESTS, ROOT / "bench"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "MEGAMOE_CACHE_DIR": str(sources.parent / "cache")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
