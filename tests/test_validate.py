"""All GPU checks in two commands (bench/validate.py): what they call exists, and one that fails does not keep the others from running."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

import validate


@lru_cache
def help_of(script: str) -> str:
    return subprocess.run([sys.executable, validate.BENCH / script, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_commands_have_what_their_scripts_know(gpus: int) -> None:
    for step in validate.steps(Path("folder"), gpus, Path("site"), Path("out")):
        for script, *arguments in (*step.prepare, *step.run):
            assert (validate.BENCH / script).exists()
            for option in (one for one in arguments if one.startswith("--")):
                assert option in help_of(script), f"{script} {option}"


@pytest.mark.parametrize(("gpus", "traffic"), [(1, []), (2, ["0.875"]), (4, ["0.875"]), (8, [])])
def test_fewer_gpus_have_the_traffic_of_eight(gpus: int, traffic: list[str]) -> None:
    timed = [step for step in validate.steps(Path("folder"), gpus, None, Path("out")) if step.name in ("time", "trace")]
    commands = [command for step in timed for command in step.run]
    assert [command[command.index("--remote") + 1 :][:1] if "--remote" in command else [] for command in commands] == 4 * [traffic]


def test_what_runs_was_prepared() -> None:
    """Folders that a step reads are made by one before it; ranks of a soak divide the GPUs' SMs."""
    made: set[str] = set()
    for step in validate.steps(Path("folder"), 4, None, Path("out")):
        made |= {one for command in step.prepare for one in command if one.startswith("folder")}
        assert {one for command in step.run for one in command if one.startswith("folder")} <= made
    soak = next(step for step in validate.steps(Path("folder"), 4, None, Path("out")) if step.name == "soak_ranks")
    assert "num_sms=66" in soak.prepare[0] and "--gpus" in soak.run[0]


def test_all_steps_run_and_one_that_fails_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[tuple[str, str]] = []

    def execute(name: str, command: Sequence[str], limit_s: int) -> validate.Outcome:
        ran.append((name, Path(command[-1]).name))
        return validate.Outcome(name, "", "FAILED" if name == "silicon" else "ok", 1, ())

    monkeypatch.setattr(validate, "execute", execute)
    monkeypatch.setattr(validate.shutil, "which", lambda tool: None)
    some = [one for one in validate.steps(Path("folder"), 1, None, Path("out")) if one.name in ("silicon", "racecheck", "layer")]
    assert [(one.step, one.well) for one in validate.validate("run", some)] == [("silicon", False), ("layer", True)]
    assert [name for name, _ in ran] == ["silicon", "layer"]
    assert "racecheck: left out, compute-sanitizer is not installed" in capsys.readouterr().out
    assert [one.well for one in validate.validate("prepare", some[1:])] == [True]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('all bits equal')", "ok"),
        ("raise SystemExit(3)", "FAILED with exit code 3"),
        ("import subprocess; subprocess.run(['sleep', '60'])", "FAILED: not done in 1 s"),
    ],
)
def test_a_command_says_how_it_went(code: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = validate.execute("step", [sys.executable, "-c", code], 1 if "sleep" in code else 60)
    assert (found.outcome, found.well, found.seconds < 30) == (told, told == "ok", True)
    shown = capsys.readouterr().out
    assert told in shown and (found.said == ("all bits equal",)) == found.well == ("all bits equal" in shown.splitlines())
    assert found.command.startswith(Path(sys.executable).name)


def test_an_unknown_step_is_refused() -> None:
    refused = subprocess.run(
        [sys.executable, validate.BENCH / "validate.py", "run", "x", "--only", "speed"], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "--only speed: must be one of silicon, layer, racecheck, memcheck, time" in refused.stderr
