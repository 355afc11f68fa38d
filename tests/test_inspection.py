"""What `megamoe inspect` shows, writes as JSON and compares, of a kernel that is written here and compiled by nobody."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from megamoe_dsl.arch import SM100, Arch
from megamoe_dsl.cli import inspect as command
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.inspect import measure_table, number, print_changes, print_inspection, tables_of
from megamoe_dsl.hardware.cta_pair import TmemField
from megamoe_dsl.inspect import Change, Inspection, differences
from megamoe_dsl.inspect.inspection import SECTIONS, RegisterUse, annotate, read_inspection
from megamoe_dsl.json_file import FileError
from megamoe_dsl.layouts.region import U8, U64, Field, MBarrier, Region, SharedPlan
from megamoe_dsl.sass.measurer import Measure

RING, SLOTS = Region.stack("ring", Field("weights", (2, 512), U8)), Region.stack("slots", Field("combine_slots", (3, 256), U8))
SMEM = Region.stack("all", Region.overlay("use", main=RING, combine=SLOTS), Field("full_barrier", (2,), U64))
BARRIERS = (
    MBarrier("full", 2, 3, "loaders", "weights and tokens", "MMA warp", leader_only=True),
    MBarrier("empty", 2, 1, "tcgen05.commit", "", "loaders"),
)
TMEM = SimpleNamespace(used=34, allocated=64, fields=[TmemField("sums", 0, 32), TmemField("scales", 32, 2)])


@dataclass(frozen=True)
class LayerProblem:
    hidden: int = 256


@dataclass(frozen=True)
class LayerConfig:
    problem: LayerProblem = LayerProblem()
    block_m: int = 16
    num_stages: int = 4
    num_threads = 128
    register_total = 60_000
    smem, tmem = SharedPlan(SMEM, BARRIERS), TMEM

    @property
    def arch(self) -> Arch:
        return SM100


REGISTERS = [RegisterUse("loader", 40, 39, 0, 0), RegisterUse("epilogue", 216, 217, 1, 2)]
MEASURES = [
    Measure("mma_k_block", "MMA warp", "K block", 55.0, {"mma": 4.0, "utccp": 3.0, "integer": 20.5, "control": 27.5}, 0x10),
    Measure("fc1_tile", "epilogue warps", "tile", 1200.0, {"float": 1000.0, "tmem": 200.0}, 0x20),
]


def load(opcode: str, address: int, source: tuple[str, int] | None = None) -> SimpleNamespace:
    return SimpleNamespace(opcode=opcode, address=address, source=source)


OVERTAKEN = [
    SimpleNamespace(load=load("LDS.64", 0x10), by=load("SYNCS.ARRIVE", 0x30, ("/kernels/moe/mma.py", 7))),
    SimpleNamespace(load=load("LDS", 0x100), by=load("SYNCS", 0x1F0)),
]


def inspection(overtaken: list[SimpleNamespace] | None = None, **changes: Any) -> Inspection:
    artifact: Any = SimpleNamespace(
        config=LayerConfig(),
        arch=SM100,
        seconds=1.23456,
        ptx="a\nb\n",
        resources=SimpleNamespace(registers=168, stack_bytes=16),
        listing=SimpleNamespace(spills=(1, 2), instructions=[None] * 9),
        dynamic_smem=2048,
        overtaken_loads=overtaken or [],
    )
    return replace(Inspection(artifact, REGISTERS, MEASURES), **changes)


def contents(table: Table) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, rows and their styles."""
    columns = [list(map(str, column.cells)) for column in table.columns]
    return (
        [str(one.header) for one in table.columns],
        list(map(list, zip(*columns, strict=True))),
        [str(row.style or "") for row in table.rows],
    )


def said(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_tables() -> None:
    """Red is who exceeds its budget or uses the stack, and every load that is overtaken."""
    registers, smem, tmem, barriers, overtaken = map(contents, tables_of(inspection(OVERTAKEN)))
    assert registers == (
        ["warps", "budget", "highest used", "stack loads", "stack stores"],
        [["loader", "40", "39", "0", "0"], ["epilogue", "216", "217", "1", "2"]],
        ["", "bold red"],
    )
    assert smem[:2] == (
        ["field", "offset", "bytes", "shape", "live"],
        [
            ["combine_slots", "0x0", "768", "3 x 256", "combine"],
            ["weights", "0x0", "1,024", "2 x 512", "main"],
            ["full_barrier", "0x400", "16", "2", "always"],
        ],
    )
    assert tmem[:2] == (["field", "first column", "columns"], [["sums", "0", "32"], ["scales", "32", "2"]])
    assert barriers[:2] == (
        ["name", "count", "arrivals", "arrives", "transaction bytes", "waits"],
        [
            ["full (even CTA)", "2", "3", "loaders", "weights and tokens", "MMA warp"],
            ["empty", "2", "1", "tcgen05.commit", "none", "loaders"],
        ],
    )
    assert overtaken == (
        ["load", "address", "by", "address", "line"],
        [["LDS.64", "0x10", "SYNCS.ARRIVE", "0x30", "mma.py:7"], ["LDS", "0x100", "SYNCS", "0x1f0", ""]],
        ["bold red", "bold red"],
    )


def test_instructions_of_kinds_that_are_not_shown_are_others() -> None:
    assert contents(measure_table(inspection()))[:2] == (
        ["role", "per", "all", "mma", "cp", "tma", "mbar", "smem", "gmem", "float", "int", "other"],
        [
            ["MMA warp", "K block", "55", "4", "3", "·", "·", "·", "·", "·", "20.5", "27.5"],
            ["epilogue warps", "tile", "1200", "·", "·", "·", "·", "·", "·", "1000", "·", "200"],
        ],
    )


@pytest.mark.parametrize(
    ("overtaken", "found"), [([], "none."), (OVERTAKEN, "2, listed above: the bytes may be overwritten before the load has read them.")]
)
def test_an_inspection_ends_with_overtaken_loads_and_instructions(
    overtaken: list[SimpleNamespace], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "print_summary", lambda console, artifact: console.print("the summary"))
    console = Console(file=StringIO(), width=100)
    print_inspection(console, inspection(overtaken))
    lines = [line.rstrip() for line in said(console).splitlines()]
    assert lines[:2] == ["the summary", "Registers per thread after setmaxnreg"]
    assert f"Overtaken loads (from SMEM, not waited for by the arrival that gives their bytes away): {found}" in lines
    assert ("Loads from SMEM that are overtaken" in lines) == bool(overtaken)
    assert lines[-1] == "A tile is counted without its K blocks or tokens, a combined token with one top-k slot."
    console = Console(file=StringIO(), width=100)
    print_inspection(console, inspection(measures=[]))
    assert said(console).splitlines()[-1].startswith("Overtaken loads")


@pytest.mark.parametrize("kernel", [["--tokens", "8"], ["--kernel", "moe_fc1", "--arch", "sm_90a"]])
def test_a_kernel_is_compiled_with_the_lines_that_measures_are_found_by(kernel: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def compile_kernel(config: Any, line_info: bool = False) -> Any:
        told.append(line_info)
        return SimpleNamespace(config=config)

    monkeypatch.setitem(sys.modules, "megamoe_dsl.artifact.compile", SimpleNamespace(compile_kernel=compile_kernel))  # type: ignore[arg-type]
    monkeypatch.setattr(Inspection, "of", lambda artifact: artifact)
    monkeypatch.setattr(command, "print_inspection", lambda console, inspection: told.append(inspection.config.problem.hidden))
    shape = ["--hidden", "512", "--intermediate", "256", "--experts", "4", "--topk", "2", "--ranks", "2"]
    result = CliRunner().invoke(app, ["inspect", *shape, *kernel])
    assert result.exit_code == 0, result.output
    assert told == [True, 512]


def test_json() -> None:
    assert inspection(OVERTAKEN).as_dict() == {
        "arch": "sm_100a",
        "compile_seconds": 1.235,
        "problem": {"hidden": 256},
        "config": {"block_m": 16, "num_threads": 128, "stages": 4},
        "resources": {
            **{"registers": 168, "register_file": "60000/65536", "stack_bytes": 16, "stack_instructions": 3, "instructions": 9},
            **{"overtaken_loads": 2, "smem_bytes": 2048, "smem_capacity": 232448},
            **{"tmem_columns": 34, "tmem_allocated": 64, "tmem_capacity": 512},
        },
        "roles": {"loader": {"budget": 40, "used": 39}, "epilogue": {"budget": 216, "used": 217}},
        "smem": {
            "combine_slots": {"offset": 0, "bytes": 768, "shape": [3, 256]},
            "weights": {"offset": 0, "bytes": 1024, "shape": [2, 512]},
            "full_barrier": {"offset": 1024, "bytes": 16, "shape": [2]},
        },
        "tmem": {"sums": {"first": 0, "columns": 32}, "scales": {"first": 32, "columns": 2}},
        "barriers": {
            "full": {
                **{"count": 2, "arrivals": 3, "who": "loaders", "transaction": "weights and tokens", "waits": "MMA warp"},
                "leader_only": True,
            },
            "empty": {"count": 2, "arrivals": 1, "who": "tcgen05.commit", "transaction": "", "waits": "loaders", "leader_only": False},
        },
        "measures": {
            one.key: {"role": one.role, "unit": one.unit, "instructions": one.instructions, "kinds": one.kinds} for one in MEASURES
        },
    }


def test_ptx_has_a_line_and_a_function_before_each_location(tmp_path: Path) -> None:
    file = tmp_path / "load.py"
    file.write_text("X = 1\n\n\ndef load_tokens():\n    return X\n")
    lines = [
        *(f'.file\t1 "{file}"', '.file\t2 "/nowhere/other.py"', "\t.loc\t1 5 3", "\tadd;", "  .loc 1 1 1, function_name x"),
        *("\t.loc\t2 7 0", "\t.loc\t3 1 0", "\tret;"),
    ]
    at = {2: "\t// load.py:5 load_tokens", 4: "  // load.py:1", 5: "\t// other.py:7"}
    wanted = [text for place, line in enumerate(lines) for text in ([at[place], line] if place in at else [line])]
    assert annotate("\n".join([*lines, ""])).splitlines() == wanted


# --- against an earlier one
PLAIN = [1, 1.5, "text", True, None, [], [1, "a"], {"a": 1}, {"a": "x", "b": None}]
"""Values of a section; one by name may hold several of them."""


@pytest.mark.parametrize("value", [*PLAIN, {"kinds": {"mma": 4.0, "tma": 1}, "shape": [1, 2]}])
def test_what_an_inspection_holds_is_read(value: object, tmp_path: Path) -> None:
    path, sections = tmp_path / "before.json", {**{name: {} for name in SECTIONS}, "smem": {"weights": value}}
    path.write_text(json.dumps({"arch": "sm_100a", **sections}))
    assert read_inspection(path) == {"arch": "sm_100a", **sections}


def test_what_is_nested_deeper_is_compared(tmp_path: Path) -> None:
    """However deep JSON can be."""
    path, deep = tmp_path / "before.json", "x"
    for _ in range(400):
        deep = {"in": deep}  # type: ignore[assignment]
    path.write_text(json.dumps({**{name: {} for name in SECTIONS}, "smem": {"weights": deep, "lists": [[], {}]}}))
    before = read_inspection(path)
    assert differences(before, {}) == [Change("smem.weights" + ".in" * 400, "x", None), Change("smem.lists", [[], {}], None)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_must_be_there(section: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({name: {} for name in SECTIONS if name != section}))
    with pytest.raises(FileError, match=rf"other.json: not a file that .* wrote: {section} must be an object"):
        read_inspection(path)


def test_a_diff_counts_fields_that_only_moved() -> None:
    before: dict[str, dict[str, dict[str, int]]] = {
        "smem": {"a": {"offset": 0, "bytes": 8}, "b": {"offset": 8, "bytes": 8}, "gone": {"offset": 16}},
        "tmem": {"sums": {"first": 0, "columns": 32}, "scales": {"first": 32, "columns": 4}},
    }
    after: dict[str, dict[str, dict[str, int]]] = {
        "smem": {"a": {"offset": 0, "bytes": 16}, "b": {"offset": 16, "bytes": 8}},
        "tmem": {"sums": {"first": 0, "columns": 64}, "scales": {"first": 64, "columns": 4}},
    }
    console = Console(file=StringIO(), width=80)
    print_changes(console, Path("before.json"), differences(before, after))
    assert re.findall(r"[st]mem\.\S+", said(console)) == ["smem.a.bytes", "tmem.sums.columns", "smem.gone.offset"]
    assert "Fields of SMEM and TMEM at another offset: 2" in said(console)


def test_changes_are_shown_as_they_are() -> None:
    """Without markup, and names in one piece in the narrowest console that has room for them."""
    changes = differences(
        {"config": {"a_field_of_many_words": "[/b]", "old": [1, 2]}, "smem": {"a": {"bytes": 1}}},
        {"config": {"a_field_of_many_words": "[b]", "new": None}, "smem": {"a": {"bytes": 2}}},
    )
    console = Console(file=StringIO(), width=60)
    print_changes(console, Path("before[b].json"), changes)
    lines = [" ".join(line.split()) for line in said(console).splitlines()]
    assert lines[0] == "Against before[b].json"
    assert lines[2:3] + lines[4:8] == [
        *("what before after", "config.a_field_of_many_words [/b] [b]", "smem.a.bytes 1 2", "config.old [1, 2] None", ""),
    ]
    console = Console(file=StringIO(), width=60)
    print_changes(console, Path("before[b].json"), [])
    assert said(console) == "Nothing differs from before[b].json.\n"


def test_numbers_have_a_decimal_where_they_need_one() -> None:
    assert [number(one) for one in (None, 0.0, 0.04, 2.25, 10.0, 120.0, 1000.5)] == ["·", "0", "0", "2.2", "10", "120", "1000.5"]
