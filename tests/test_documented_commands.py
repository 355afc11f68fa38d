"""Commands in the documents exist, and take the options that the documents give them."""

import re
from functools import cache
from pathlib import Path

import pytest
import typer

from megamoe_dsl.cli.app import app
from script_help import help_of

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "bench" / "results" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
CODE = re.compile(r"```console\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def commands(page: str, first: str) -> list[list[str]]:
    """Words of the page's commands that begin with `first`, without comments, brackets, and what comes after the command."""
    spans = [line for block, span in CODE.findall(page) for line in (block or span).splitlines()]
    lines = [re.split(r" # | [>|&]", line)[0].replace("[", "").replace("]", "") for line in spans]
    return [words for line in lines if (words := line.split())[: len(first.split())] == first.split()]


@cache
def megamoe_options() -> dict[str, set[str]]:
    """Options of every command of `megamoe`; a command of a group by both names."""
    root, found = typer.main.get_command(app), {}
    pending = [("", root)]
    while pending:
        name, command = pending.pop()
        pending += [(f"{name} {one}".strip(), sub) for one, sub in getattr(command, "commands", {}).items()]
        found[name] = {"--help", *(option for param in command.params for option in param.opts + param.secondary_opts)}
    return found


def options(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_megamoe_take_their_options(page: Path) -> None:
    for words in commands(page.read_text(), "megamoe"):
        known = megamoe_options()
        named = words[1:] if not words[1:2] or not words[1].startswith("--") else []  # megamoe --version names none
        name = next((one for one in (" ".join(named[:2]), " ".join(named[:1])) if one in known), None)
        assert name is not None, f"no such command: {' '.join(words)}"
        assert options(words) <= known[name], " ".join(words)


def test_scripts_exist_and_take_their_options() -> None:
    asked: dict[tuple[str, str], set[str]] = {}
    for page in PAGES:
        for _, script, *words in commands(page.read_text(), "python"):
            if not script.startswith("-"):  # python -m pytest
                subcommand = words[0] if words and words[0] in ("prepare", "run", "counters", "compile", "accuracy") else ""
                asked.setdefault((script, subcommand), set()).update(options(words))
    assert [script for script, _ in asked if not (ROOT / script).is_file()] == []
    known = {key: set(re.findall(r"--[a-z][a-z-]*", help_of(ROOT / key[0], *key[1].split()))) for key, named in asked.items() if named}
    assert {key: asked[key] - known[key] for key in known if asked[key] - known[key]} == {}


def test_commands_are_found() -> None:
    everything = "\n".join(page.read_text() for page in PAGES)
    assert len(commands(everything, "megamoe")) >= 25 and len(commands(everything, "python")) >= 15
    assert commands("`megamoe tune --from F [--tables D]`, later", "megamoe") == [["megamoe", "tune", "--from", "F", "--tables", "D"]]
    assert commands("```console\npython a.py --x   # why\n```", "python") == [["python", "a.py", "--x"]]
