"""The page of a record: what was caught and by which check, what is equivalent, what escapes and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mutant import Mutant

COMMAND = "python tests/mutants/mutation_score.py"
HEAD = f"""\
# Mutants

What a developer could get wrong, planted on purpose, and the check that notices. This page is made by a command from its record:

```console
{COMMAND} run build/mutation.json          # tries what the record lacks; all of it takes hours on one core
{COMMAND} table build/mutation.json        # prints this page
```

A mutant of the sources is one change to one function, class or constant. It first meets a short simulation on each architecture (two
ranks, launches without a pause, the reference, the race detector), then the tests nearest to it; what such a simulation does not run into,
those tests alone. A fault of the PTX takes out or weakens one instruction of the compiled kernel.
"""
SOURCE_HEADS = "| Mutant | Stands for | Where | Caught by |\n|---|---|---|---|"
WHY_HEADS = "| Mutant | Where | Why |\n|---|---|---|"
UNTRIED_HEADS = "| Mutant | Stands for | Where |\n|---|---|---|"
Reasons = Mapping[str, Callable[[str], str]]


def cell(text: str) -> str:
    """Text for a cell of a table: one line, no bars."""
    return " ".join(text.split()).replace("|", "\\|")


def caught_by(entry: Mapping[str, Any]) -> str:
    """What noticed a mutant, in words."""
    kind = entry["sign"].split(":")[0]
    if entry["by"].startswith("simulation"):
        return f"{entry['by'].replace('sm_90a', 'SM90').replace('sm_100a', 'SM100')}: {cell(kind)[:60]}"
    return f"`{entry['by'].removeprefix('tests/').split('/')[-1]}`"


def source_tables(kernel: str, mutants: Iterable[Mutant], entries: list[dict[str, Any]]) -> list[str]:
    """Sections of a family's mutants: in its declarations' order; those that the record lacks are said to be untried."""
    found = {(one["name"], one["digest"]): one for one in entries if one["level"] == "source" and one["kernel"] == kernel}
    caught, equivalent, escaping, untried = [], [], [], []
    for mutant in mutants:
        entry = found.get((mutant.name, mutant.digest))
        where = f"`{mutant.where}`"
        if entry is None:
            untried.append(f"| {mutant.name} | {mutant.kind} | {where} |")
        elif entry["by"]:
            caught.append(f"| {mutant.name} | {mutant.kind} | {where} | {caught_by(entry)} |")
        elif mutant.equivalent:
            equivalent.append(f"| {mutant.name} | {where} | {cell(mutant.equivalent)} |")
        else:
            escaping.append(f"| {mutant.name} | {where} | {cell(mutant.escapes) or '**not explained**'} |")
    tried = len(caught) + len(equivalent) + len(escaping)
    score = f"{len(caught)} of {tried} caught, {len(equivalent)} equivalent, {len(escaping)} not caught; {len(untried)} not tried yet."
    sections = [f"## {kernel}: sources\n", f"{score}\n"]
    tables = {
        "Caught": (SOURCE_HEADS, caught),
        "Equivalent": (WHY_HEADS, equivalent),
        "Not caught": (WHY_HEADS, escaping),
        "Not tried yet": (UNTRIED_HEADS, untried),
    }
    for title, (heads, rows) in tables.items():
        if rows:
            sections += [f"### {title}\n", "\n".join([heads, *rows]) + "\n"]
    return sections


def ptx_table(kernel: str, entries: list[dict[str, Any]], why: Callable[[str], str]) -> list[str]:
    """Sections of a family's PTX faults: per architecture, how many each kind of sign shows, and those that nothing shows.

    An entry's `of` is how many faults its kernels had.
    """
    sections = []
    for arch in dict.fromkeys(one["arch"] for one in entries if one["level"] == "ptx" and one["kernel"] == kernel):
        some = [one for one in entries if one["level"] == "ptx" and one["kernel"] == kernel and one["arch"] == arch]
        signs = Counter(one["sign"].split(":")[0] or "nothing" for one in some)
        rows = [f"| {sign} | {count} |" for sign, count in sorted(signs.items(), key=lambda item: -item[1])]
        silent = [f"| {one['name']} | {cell(why(one['name'])) or '**not explained**'} |" for one in some if not one["sign"]]
        noticed, untried = len(some) - signs["nothing"], some[-1]["of"] - len(some)
        score = f"{noticed} of {len(some)} noticed, {signs['nothing']} not" + (f"; {untried} not tried yet." if untried else ".")
        sections += [f"## {kernel}: PTX of {arch}\n", f"{score}\n", "\n".join(["| First sign | Faults |", "|---|---|", *rows]) + "\n"]
        if silent:
            sections.append("\n".join(["| Not noticed | Why |", "|---|---|", *silent]) + "\n")
    return sections


def page(record: str, entries: list[dict[str, Any]], mutants: Mapping[str, tuple[Mutant, ...]], why: Reasons) -> str:
    """The whole page of the record of this name, family by family."""
    sections = [HEAD, f"Record: `{record}`.\n"]
    for kernel, some in mutants.items():
        if not some:
            sections.append(f"## {kernel}\n\nDeclares no mutants.\n")
            continue
        sections += source_tables(kernel, some, entries) + ptx_table(kernel, entries, why.get(kernel, lambda name: ""))
    return "\n".join(sections)
