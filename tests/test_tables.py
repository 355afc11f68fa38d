"""Tables of commands: that narrow ones lose nothing, what stands out, and what every simulation says in the end."""

from __future__ import annotations

import sys
from collections import Counter
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from megamoe_dsl.cli import tables
from megamoe_dsl.cli.tables import conclude, counting, facts, print_reports, ruled, steps, verdict, wide_console
from megamoe_dsl.sim import Report

RED, GREEN, YELLOW, CYAN = 31, 32, 33, 36


def printed(*shown: RenderableType, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width)
    for one in shown:
        console.print(one)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


class Colors:
    """A console whose output has colors."""

    def __init__(self) -> None:
        self.console = Console(file=StringIO(), width=120, force_terminal=True, color_system="standard")

    def has(self, text: str, *codes: int) -> bool:
        """Whether this is shown with these of ANSI's codes; 1 is bold."""
        return f"\x1b[{';'.join(map(str, codes))}m{text}" in self.console.file.getvalue()  # type: ignore[attr-defined]


# --- width
@pytest.mark.parametrize("columns", [30, 50, 80])
def test_narrow_tables_fold_and_cut_nothing(columns: int) -> None:
    table = ruled("Title", ("name", "arrives", "waits"), [("work_tile_empty", "tcgen05.commit,multicast", "scheduler-and-dispatch")])
    other = facts("Facts", [("ahead", "256-weight-rows-x-192-tokens-over-two-CTAs")])
    shown = printed(table, other, width=columns)
    assert max(map(len, shown.splitlines())) <= columns and "…" not in shown
    for word in ("work_tile_empty", "tcgen05.commit,multicast", "scheduler-and-dispatch", "256-weight-rows-x-192-tokens-over-two-CTAs"):
        assert Counter(word) <= Counter(shown), word


def test_names_of_facts_are_whole_beside_long_values() -> None:
    shown = printed(facts("Facts", [("hidden, intermediate", "ab " * 30), ("ranks", 2)]), width=60)
    assert "hidden, intermediate" in shown and max(map(len, shown.splitlines())) <= 60


@pytest.mark.parametrize(("columns", "terminal", "width"), [("40", "0", 120), ("200", "0", 200), ("40", "1", 40), ("200", "1", 200)])
def test_what_is_no_terminal_has_room(columns: str, terminal: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TTY_COMPATIBLE", terminal)
    assert wide_console().width == width


# --- what is shown
def test_a_table_is_its_title_headings_and_rows() -> None:
    """Text as it is, without markup."""
    table = ruled("Title [b]", ("name", "count"), [("one [bold]", 1), ("two", Text("4"))])
    assert [line.rstrip() for line in printed(table).splitlines()] == [
        *("Title [b]", "", " name        count", " ──────────────────", " one [bold]  1", " two         4", ""),
    ]
    shown = printed(facts("Facts [b]", [("ranks", 2), ("note[i]", "[bold] stays")]))
    assert [line.rstrip() for line in shown.splitlines()] == ["Facts [b]", "  ranks      2", "  note[i]    [bold] stays"]


def test_verdicts_and_styles_of_rows_stand_out() -> None:
    colors = Colors()
    rows = [("first", verdict(0)), ("second", verdict(12345)), ("third", 3)]
    colors.console.print(ruled("Title", ("name", "verdict"), rows, ["", "", "yellow"]))
    colors.console.print(facts("Facts", [("ranks", 2)]))
    assert colors.has("pass", GREEN) and colors.has("12,345 mismatches", 1, RED) and colors.has("third", YELLOW)
    assert all(colors.has(name, CYAN) for name in ("first", "second", "ranks")) and all(colors.has(one, 1) for one in ("Title", "Facts"))


# --- simulations
def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("rich.progress.Progress.update", lambda progress, task, description: told.append(description))
    console = Console(file=StringIO())
    with steps(console) as show:
        show("weights of rank 1")
    with counting(console) as count:
        count(1_234_567, 0.5)
        count(0, 0.0)
    assert told == ["making data: weights of rank 1", "1,234,567 warp instructions, 2,469,134/s", "0 warp instructions, 0/s"]


def report(*findings: str, instructions: int = 1234, seconds: float = 0.26, **warnings: int) -> Any:
    return Report(instructions, seconds, list[Any](findings), Counter(warnings))


@pytest.mark.parametrize(
    ("race", "findings"), [(True, ("0", "2")), (False, ("not looked for", "not looked for"))], ids=["race", "without races"]
)
def test_reports_are_a_row_for_each_launch_then_findings_and_warnings(race: bool, findings: tuple[str, str]) -> None:
    colors = Colors()
    print_reports(colors.console, [report(unread=3, other=2), report("one", "two", seconds=12.0)], race=race)
    colors.console.no_color, plain = True, Console(file=StringIO(), width=120)
    print_reports(plain, [report(unread=3, other=2), report("one", "two", seconds=12.0)], race=race)
    said = " ".join(plain.file.getvalue().split())  # type: ignore[attr-defined]
    assert f" 1 {findings[0]} 5 1,234 0.3 2 {findings[1]} 0 1,234 12.0 warning: unread (3 times) warning: other (2 times) race: one" in said
    assert "race: one race: two A warning is a read of what nobody has written" in said
    assert colors.has("race: one", 1, RED) and colors.has("warning: unread (3 times)", YELLOW)


def test_warnings_beside_a_pass_are_explained() -> None:
    for warnings in ({}, {"uninitialized": 3}):
        console = Console(record=True, file=StringIO(), width=80)
        assert conclude(console, True, [report(**warnings)], "all of it", race=True)
        assert ("A warning is a read of what nobody has written" in console.export_text()) == bool(warnings)


@pytest.mark.parametrize(
    ("right", "findings", "race", "said", "passed"),
    [
        (True, [(), ()], True, "PASS: all of it; no race found", True),
        (True, [(), ()], False, "PASS: all of it", True),
        (True, [(), ("a race",)], True, "FAIL", False),
        (True, [("a race",), ()], True, "FAIL", False),
        (False, [(), ()], True, "FAIL", False),
    ],
)
def test_the_last_line_is_the_verdict(right: bool, findings: list[tuple[str, ...]], race: bool, said: str, passed: bool) -> None:
    colors, plain = Colors(), Console(file=StringIO(), width=120)
    for console in (colors.console, plain):
        assert conclude(console, right, [report(*some) for some in findings], "all of it", race=race) == passed
    assert plain.file.getvalue().splitlines()[-1] == said  # type: ignore[attr-defined]
    assert colors.has(said, 1, GREEN if passed else RED)


def test_kernels_are_compiled_with_lines_and_each_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings and faults name Python lines."""
    asked: list[tuple[object, bool]] = []

    def compile_kernel(config: str, line_info: bool = False) -> str:
        asked.append((config, line_info))
        return f"kernel of {config}"

    monkeypatch.setitem(sys.modules, "megamoe_dsl.artifact.compile", SimpleNamespace(compile_kernel=compile_kernel))  # type: ignore[arg-type]
    monkeypatch.setattr(tables, "artifact_table", lambda artifact: f"table of {artifact}")
    console, configs = Console(file=StringIO(), width=80), ["one", "other"]
    assert tables.compiled(console, configs) == ["kernel of one", "kernel of other"]  # type: ignore[arg-type,comparison-overlap]
    assert asked == [("one", True), ("other", True)]
    assert console.file.getvalue() == "table of kernel of one\ntable of kernel of other\n"  # type: ignore[attr-defined]
