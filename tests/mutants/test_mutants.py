"""Declared mutants fit the sources and the page, and a sample of them is noticed.  All: `mutation_score.py`, docs/lab/mutants.md."""

from __future__ import annotations

import ast
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mutation_score
import pytest
from anchor import Code
from mutant import KINDS, PACKAGE, Mutant
from mutation_ladder import ROOT, climb, sound
from mutation_score import FAMILIES, Selection, mutants_of, page_of
from mutation_table import page

PAGE = ROOT / "docs" / "lab" / "mutants.md"
ALL = [(name, mutant) for name in FAMILIES for mutant in mutants_of(name)]
SAMPLE = {
    "pre_dispatch": ("the last token's slots are left out",),
}


def name_of(value: object) -> str:
    return value.name if isinstance(value, Mutant) else str(value)


@pytest.mark.parametrize("kernel", FAMILIES)
def test_every_registered_kernel_and_part_has_mutants(kernel: str) -> None:
    assert mutants_of(kernel), f"tests/mutants/{kernel}_mutants.py declares what a developer could get wrong in it"


@pytest.mark.parametrize(("kernel", "mutant"), ALL, ids=name_of)
def test_a_mutant_fits_the_sources(kernel: str, mutant: Mutant) -> None:
    """What it changes stands once in today's sources, which are Python then, and some check may notice it."""
    _, text = mutant.changed()
    assert ast.parse(text) and Code(mutant.old).normal != Code(mutant.new).normal and mutant.kind in KINDS
    assert mutant.archs or mutant.nearest
    assert not (mutant.equivalent and mutant.escapes)


def test_no_two_mutants_are_one() -> None:
    assert len({mutant.name for _, mutant in ALL}) == len({mutant.digest for _, mutant in ALL}) == len(ALL) >= 40


@pytest.mark.parametrize("test", sorted({test for _, mutant in ALL for test in mutant.nearest}))
def test_the_nearest_tests_exist(test: str) -> None:
    file, name = test.split("::")
    functions = [node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name.split("[")[0] in functions


def test_the_page_lists_every_mutant() -> None:
    text = PAGE.read_text()
    assert [mutant.name for _, mutant in ALL if f"| {mutant.name} |" not in text] == []
    assert "not explained" not in text
    record = re.search(r"^Record: `(\S+)`\.$", text, re.M)
    assert record, "the page says which record it shows"
    made = page_of(ROOT / "bench" / "results" / f"{record[1]}.json")
    assert text == made, "python tests/mutants/mutation_score.py table bench/results/RECORD.json > docs/lab/mutants.md"


@pytest.mark.parametrize(("kernel", "name"), [(kernel, name) for kernel, names in SAMPLE.items() for name in names])
def test_a_sample_is_noticed(kernel: str, name: str) -> None:
    mutant = next(one for one in mutants_of(kernel) if one.name == name)
    assert climb(kernel, mutant).by


@pytest.mark.sweep
def test_the_package_itself_is_not() -> None:
    assert sound("pre_dispatch", "sm_90a")


def test_a_copy_of_the_package_has_the_change(tmp_path: Path) -> None:
    mutant = mutants_of("topk_sum")[0]
    file, text = mutant.changed()
    sources = mutant.plant(tmp_path)
    assert (sources / PACKAGE.name / file).read_text() == text != (PACKAGE / file).read_text()


def test_a_digest_is_of_the_change_however_it_is_written() -> None:
    assert Mutant("a", "off by one", "f", "g(x)", "").digest == Mutant("b", "off by one", "f", "g(\n    x,\n)  # all", "").digest
    assert Mutant("a", "off by one", "f", "g(x)", "").digest != Mutant("a", "off by one", "h", "g(x)", "").digest


def test_a_record_is_added_to_and_taken_anew_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is not tried again; --fresh tries what is asked for; faults that are no more are dropped."""
    tried: list[str] = []

    def family(*names: str) -> SimpleNamespace:
        def notice(name: str) -> str:
            tried.append(name)
            return "race: somewhere"

        return SimpleNamespace(MUTANTS=(), ptx_faults=lambda: [(name[:-2], name, partial(notice, name)) for name in names])

    record = tmp_path / "record.json"

    def entries(selection: Selection, fresh: bool, *names: str) -> list[str]:
        monkeypatch.setattr(mutation_score, "declared", lambda kernel: family(*names))
        tried.clear()
        mutation_score.run(record, selection, fresh)
        return [entry["name"] for entry in json.loads(record.read_text())["records"]]

    everything, one = Selection(("k",)), Selection(("k",), arch="sm_90a")
    assert entries(everything, False, "sm_90a 0", "sm_100a 0") == ["sm_90a 0", "sm_100a 0"] == tried
    assert entries(everything, False, "sm_90a 0", "sm_100a 0", "sm_100a 1") == ["sm_90a 0", "sm_100a 0", "sm_100a 1"]
    assert tried == ["sm_100a 1"]
    assert entries(one, True, "sm_90a 7", "sm_100a 0", "sm_100a 1") == ["sm_100a 0", "sm_100a 1", "sm_90a 7"]
    assert tried == ["sm_90a 7"]
    assert entries(everything, False, "sm_100a 1", "sm_90a 7", "sm_90a 8") == ["sm_100a 1", "sm_90a 7", "sm_90a 8"]
    assert not one.has({"kernel": "k", "level": "source", "name": "sm_90a"})


def test_a_page_says_what_escapes() -> None:
    caught, same, lost, new = (Mutant(name, "off by one", "chip", name, "") for name in ("one", "two", "three", "four"))
    same = Mutant("two", "off by one", "chip", "two", "", equivalent="nothing | changes")

    def entry(mutant: Mutant, by: str, sign: str) -> dict[str, str]:
        return {"level": "source", "kernel": "k", "name": mutant.name, "digest": mutant.digest, "by": by, "sign": sign}

    entries = [entry(caught, "simulation on sm_90a", "race: at a place"), entry(same, "", ""), entry(lost, "", "")]
    entries += [
        {"level": "ptx", "kernel": "k", "arch": "sm_90a", "name": name, "of": 3, "sign": sign}
        for name, sign in (("a", "race: x"), ("b", ""))
    ]
    text = page("a-record", entries, {"k": (caught, same, lost, new), "empty": ()}, {"k": lambda name: f"why {name}"})
    assert "1 of 3 caught, 1 equivalent, 1 not caught; 1 not tried yet." in text
    assert "| one | off by one | `chip` | simulation on SM90: race |" in text
    assert "| two | `chip` | nothing \\| changes |" in text
    assert "| three | `chip` | **not explained** |" in text and "| four | off by one | `chip` |" in text and "Record: `a-record`." in text
    assert (
        "1 of 2 noticed, 1 not; 1 not tried yet." in text
        and "| race | 1 |" in text
        and "| b | why b |" in text
        and "## empty\n\nDeclares no mutants." in text
    )
