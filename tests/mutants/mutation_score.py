"""The mutation score of every registered kernel and of parts of the host: what notices each mistake, and why the others escape.

    python tests/mutants/mutation_score.py run RECORD [--kernel NAME] [--level source] [--arch NAME] [--only TEXT] [--fresh] [--after OLD]
    python tests/mutants/mutation_score.py table RECORD > docs/lab/mutants.md

`run` adds to the record what it lacks, mutant by mutant, so that it may be stopped and called again; --fresh first drops what it is to try.
With the record of an earlier run, each mutant first meets the check that noticed it then.
Source-level mutants are declared in NAME_mutants.py beside this file, PTX-level faults in tests/kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("", "kernels", "runtime", "gpu")), str(HERE.parents[1] / "bench")]

from anchor import MutantError  # noqa: E402
from mutant import ARCHS, Mutant  # noqa: E402
from mutation_ladder import climb, sound  # noqa: E402
from mutation_table import page  # noqa: E402

from first_finding import first_sign  # noqa: E402
from megamoe_dsl.bench.results import heading, write  # noqa: E402
from megamoe_dsl.kernels.registry import KERNELS  # noqa: E402

HOST = ("host", "artifact", "checkpoints", "compat")
"""The host's part of calls, and other parts of the package that run on the host alone: mutants of theirs meet no simulation."""
FAMILIES = (*(kernel.name for kernel in KERNELS), *HOST)
LEVELS = ("source", "ptx")
Job = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What identifies an entry of the record, and what makes the rest of it."""


@dataclass(frozen=True)
class Selection:
    """Entries to try: of these kernels and levels, `only` those whose name has this text; with an `arch`, faults of its PTX alone."""

    kernels: tuple[str, ...]
    levels: tuple[str, ...] = LEVELS
    arch: str = ""
    only: str = ""

    def has(self, entry: Mapping[str, Any]) -> bool:
        """Whether it is one of them; what identifies an entry is enough."""
        of_arch = not self.arch or entry.get("arch") == self.arch
        return entry["kernel"] in self.kernels and entry["level"] in self.levels and of_arch and self.only in entry["name"]


def declared(kernel: str) -> ModuleType | None:
    """A family's mutants, if it has any."""
    return import_module(f"{kernel}_mutants") if find_spec(f"{kernel}_mutants") else None


def mutants_of(kernel: str) -> tuple[Mutant, ...]:
    """A family's source-level mutants; none for one that declares none."""
    module = declared(kernel)
    return module.MUTANTS if module else ()


def jobs(kernel: str, levels: Sequence[str], before: dict[str, str]) -> Iterator[Job]:
    """All that is to be tried of a family; `before` names the checks that noticed mutants once."""
    module = declared(kernel)
    if module is None:
        return
    if "source" in levels:
        for mutant in module.MUTANTS:
            named = {"level": "source", "kernel": kernel, "name": mutant.name, "digest": mutant.digest}
            yield named, lambda mutant=mutant: climb(kernel, mutant, before.get(mutant.name, "")).record()
    if "ptx" in levels and hasattr(module, "ptx_faults"):
        faults = list(module.ptx_faults())
        of_arch = Counter(arch for arch, _, _ in faults)
        for arch, name, notice in faults:
            named = {"level": "ptx", "kernel": kernel, "arch": arch, "name": name}
            yield named, lambda named=named, notice=notice: {**named, "of": of_arch[named["arch"]], "sign": first_sign(notice) or ""}


def noticed(record: Path, kernel: str) -> dict[str, str]:
    """By which check each mutant of a family was noticed."""
    entries = json.loads(record.read_text())["records"]
    return {one["name"]: one["by"] for one in entries if one["level"] == "source" and one["kernel"] == kernel}


def present(entries: list[dict[str, Any]], kernel: str, named: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The record's entries without PTX faults of a family that are no more; the others with how many there are now."""
    faults = {(one["arch"], one["name"]) for one in named if one["level"] == "ptx"}
    of_arch, found = Counter(arch for arch, _ in faults), []
    for one in entries:
        if (one["level"], one["kernel"]) != ("ptx", kernel):
            found.append(one)
        elif (one["arch"], one["name"]) in faults:
            found.append({**one, "of": of_arch[one["arch"]]})
    return found


def run(record: Path, wanted: Selection, fresh: bool, after: Path | None = None) -> None:
    """Tries what the record lacks and adds it, one by one.  Raises MutantError when a check finds something in the unchanged package."""
    entries: list[dict[str, Any]] = json.loads(record.read_text())["records"] if record.exists() else []
    if fresh:
        entries = [entry for entry in entries if not wanted.has(entry)]
    for kernel in wanted.kernels:
        if declared(kernel) is None:
            print(f"{kernel}: declares no mutants ({kernel}_mutants.py beside this script)")
            continue
        before = noticed(after, kernel) if after else {}
        tried = list(jobs(kernel, wanted.levels, before))
        if "ptx" in wanted.levels:
            entries = present(entries, kernel, [named for named, _ in tried])
        todo = [(named, job) for named, job in tried if wanted.has(named)]
        todo = [(named, job) for named, job in todo if not any(named.items() <= entry.items() for entry in entries)]
        changes = {named["name"] for named, _ in todo if named["level"] == "source"}
        for arch in sorted({arch for mutant in mutants_of(kernel) if mutant.name in changes for arch in mutant.archs}):
            if not sound(kernel, arch):
                raise MutantError(f"{kernel}: the short simulation on {arch} finds something in the package as it is")
        for number, (named, job) in enumerate(todo, 1):
            start = time.monotonic()
            entry = job()
            same = ("level", "kernel", "arch", "name")
            entries = [old for old in entries if any(old.get(key) != named.get(key) for key in same)] + [entry]
            write(record, heading(), entries)
            how = " ".join(f"{entry.get('by', '')} {entry['sign']}".split())[:160] or "NOT NOTICED"
            print(f"{kernel} {number}/{len(todo)} {time.monotonic() - start:.0f} s  {named['name']}: {how}", flush=True)
    write(record, heading(), entries)


def page_of(record: Path) -> str:
    """docs/lab/mutants.md, of a record."""
    reasons = {name: declared(name).why_unnoticed for name in FAMILIES if hasattr(declared(name), "why_unnoticed")}
    return page(record.stem, json.loads(record.read_text())["records"], {name: mutants_of(name) for name in FAMILIES}, reasons)


def main() -> None:
    parser = argparse.ArgumentParser(description="Which mistakes in a kernel some check notices.")
    modes = parser.add_subparsers(dest="mode", required=True)
    running = modes.add_parser("run", help="tries the mutants that the record lacks")
    running.add_argument("record", type=Path, help="JSON file, made if need be")
    running.add_argument("--kernel", choices=FAMILIES, help="or part of the host; default: all")
    running.add_argument("--level", choices=LEVELS, help="changes to the sources, or to the compiled PTX; default: both")
    running.add_argument("--arch", choices=ARCHS, default="", help="faults of this architecture's PTX alone")
    running.add_argument("--only", default="", help="mutants whose name has this text")
    running.add_argument("--fresh", action="store_true", help="takes anew what the record has of them")
    running.add_argument("--after", type=Path, metavar="RECORD", help="of an earlier run: what noticed a mutant there is tried first")
    table = modes.add_parser("table", help="prints the page of a record")
    table.add_argument("record", type=Path)
    given = parser.parse_args()
    if given.mode == "table":
        print(page_of(given.record), end="")
        return
    given.record.parent.mkdir(parents=True, exist_ok=True)
    try:
        kernels, levels = (given.kernel,) if given.kernel else FAMILIES, (given.level,) if given.level else LEVELS
        run(given.record, Selection(kernels, levels, given.arch, given.only), given.fresh, given.after)
    except MutantError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
