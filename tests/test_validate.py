"""All GPU checks in two commands (bench/validate.py): what they call exists, and one that fails does not keep the others from running."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import ep_ranks
import gemm_silicon
import prepare
import validate
from gpu_options import GpuOptions
from mega_moe import MegaMoeOptions, ScriptSession
from megamoe_dsl import Target, choose
from megamoe_dsl.arch import SM90
from megamoe_dsl.bench.ep import without_clamp
from megamoe_dsl.bench.point import Point
from megamoe_dsl.kernels.moe.halves.layouts import symmetric as ep_moe
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import pool_rows
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.moe.layouts import symmetric as mega_moe
from megamoe_dsl.kernels.moe.sm90.config import PACKED_BLOCK_M, Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.options.option import options_of
from megamoe_dsl.options.points import TuneOptions
from megamoe_dsl.problem import Problem
from script_help import help_of
from script_options import add_options, read_options
from script_points import shares_of

ABSENT = ("cutlass", "typer", "rich", "hypothesis", "filelock")


def script_of(command: Sequence[str]) -> Path:
    """The file that a command runs or, with pytest, tests."""
    (found,) = [Path(one) for one in command if one.endswith(".py")]
    return found


@lru_cache
def help_of_pytest(folder: Path) -> str:
    return subprocess.run([sys.executable, "-m", "pytest", folder, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("gpus", "arch", "simulated"), [(1, "sm_90a", False), (4, "sm_100a", False), (1, "sm_100a", True)])
def test_commands_have_what_their_scripts_know(gpus: int, arch: str, simulated: bool) -> None:
    for step in validate.steps(Path("folder"), gpus, Path("site"), Path("out"), arch, simulated):
        for command in (*step.prepare, *step.run):
            if "megamoe_dsl" in command:
                assert {one for one in command if one.startswith("--")} <= {one.flag for one in options_of(TuneOptions)}
                continue
            script = script_of(command)
            assert script.exists()
            known = help_of_pytest(script.parent) if "pytest" in command else help_of(script)
            for option in (one for one in command if one.startswith("--")):
                assert option in known, f"{script} {option}"


@pytest.mark.sweep
def test_checks_under_the_sanitizer_are_there() -> None:
    """One of every main loop, of a ring and of stages, of what quantizes, and every GEMM of the suite; collected where neither the DSL nor
    the command line's packages are."""
    code = f"import sys\nfor name in {ABSENT!r}:\n    sys.modules[name] = None\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    sanitized = next(step.run for step in validate.steps(Path("folder"), 2, None, Path("out")) if step.name == "racecheck")
    found = []
    for command in sanitized:
        asked = [sys.executable, "-c", code, "--collect-only", "-qq", *command[2:]]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=validate.ROOT, env=environment)
        found.append([line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line])
    packed = [f"packed_m{m}" for m in PACKED_BLOCK_M]
    cases = (
        "m8",
        "m128",
        "pairs",
        *packed,
        "packed_pairs",
        "ring_m8",
        "ring_m128",
        "stages_m8",
        "stages_m128",
        "stages_pairs",
        "stages_packed",
    )
    assert found == [
        [f"test_all_ranks_on_one_gpu[once_{case}]" for case in cases],
        ["test_layer[1-pre_dispatch_bytes]"],
        [f"test_d_is_the_simulators[{check.name}]" for check in gemm_silicon.checks(SM90)],
        [f"test_once[{way}-{recipe}-{exact}]" for way, recipe, exact in ep_ranks.ONCE],
    ]


@pytest.mark.parametrize(("gpus", "traffic"), [(1, []), (2, ["0.875"]), (4, ["0.875"]), (8, [])])
def test_fewer_gpus_have_the_traffic_of_eight(gpus: int, traffic: list[str]) -> None:
    timed = [step for step in validate.steps(Path("folder"), gpus, None, Path("out")) if step.name in ("time", "trace")]
    commands = [command for step in timed for command in step.run]
    assert [command[command.index("--remote") + 1 :][:1] if "--remote" in command else [] for command in commands] == len(commands) * [
        traffic
    ]
    assert len(commands) == (2 if gpus == 8 else 4)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_sessions_of_the_benchmark_are_valid(gpus: int, tmp_path: Path) -> None:
    """What contradicts is refused before there is a GPU; weights of 4 bits lie on a ring."""
    parser, sessions = ArgumentParser(), {}
    add_options(parser.add_argument, MegaMoeOptions)
    for step in validate.steps(tmp_path, gpus, None, tmp_path):
        for command in step.run:
            if command[0].endswith("mega_moe.py"):
                session = ScriptSession.given(read_options(MegaMoeOptions, parser.parse_args(command[1:])))
                sessions.setdefault(step.name, []).extend(session.points)
    assert {one.ranks for one in sessions["packed"]} == {gpus}
    assert {(one.recipe, one.pool_rows) for name in ("packed", "packed_soak") for one in sessions[name]} == {("fp8xmxfp4", 0)}
    most = [one for one in sessions["packed"] if one.tokens == 8192]
    assert all(chosen(one.problem, **one.pool).ring_blocks for one in most) and len(most) == 2
    assert {one.recipe for one in sessions["unfused"]} == {"fp8xfp8", "fp8xmxfp4"}


def stage_bytes(problem: Problem) -> int:
    """BF16 of Linear1 and of Linear2 for each row of the pool."""
    return 2 * mega_moe.pool_tokens(problem) * (2 * problem.intermediate + problem.hidden)


def chosen(problem: Problem, **fields: Any) -> Sm90Config:
    return choose(problem, Target.typical("sm_90a"), problem.max_tokens_per_rank, **fields)


@pytest.mark.parametrize("preset", validate.MEASURED)
def test_what_ep_time_keeps_fits_one_of_eight_gpus(preset: str) -> None:
    """At most tokens: both halves with all choices, the fused kernel and its stages; an H200 has 139 GiB."""
    tokens = max(int(one) for one in validate.EP_TOKENS.split(","))
    moe = without_clamp(Point(preset, tokens, validate.RANKS).problem)
    halves = ep_moe.symmetric_buffer(moe, ep_moe.Kept.RESULTS).size + pool_rows(moe) * (4 * moe.intermediate + moe.intermediate * 33 // 32)
    layer = mega_moe.symmetric_buffer(moe, SM90).size + stage_bytes(moe)
    weights = 2 * 3 * moe.experts_per_rank * moe.hidden * moe.intermediate
    assert halves + layer + weights < 125 << 30


def test_pairs_are_timed_in_turns_with_8_bits() -> None:
    """Kernels of both are in the folder; a soak, without `--variants`, is of 4 bits alone, on one GPU and on two."""
    (step,) = [one for one in validate.steps(Path("folder"), 4, Path("site"), Path("out")) if one.name == "pairs"]
    assert {command[command.index("--recipe") + 1] for command in step.prepare} == {validate.PACKED, validate.FP8}
    soaks = [command for command in step.run if "--soak" in command]
    timed = [command for command in step.run if command not in soaks]
    assert len(timed) == len(soaks) == len(validate.MEASURED)
    assert all({"--variants", "--baseline", "--remote"} <= set(command) for command in timed)
    assert not any({"--variants", "--remote"} & set(command) for command in soaks)
    ranks = [{command[command.index("--ranks") + 1] for command in commands} for commands in (step.prepare, timed, soaks)]
    assert ranks == [{"1,2,4"}, {"4"}, {"1,2"}]
    two = [point.problem for name in validate.MEASURED for point in shares_of(f"{name}:2048")]
    assert all(chosen(replace(problem, recipe=validate.PACKED)).halves_decoding for problem in two)


def test_eight_ranks_on_one_gpu_have_rings_and_stages() -> None:
    """4-bit weights lie on a ring; what a launch per stage needs beside that has room for any routing, and fits."""
    steps = {one.name: one for one in validate.steps(Path("folder"), 1, None, Path("out"))}
    parser = ArgumentParser()
    add_options(parser.add_argument, GpuOptions)
    found = {name: [options_after_pytest(parser, one) for one in steps[name].run] for name in ("packed_ranks", "unfused_ranks")}
    assert {name: [(one.recipe, one.soak_pool_rows) for one in each] for name, each in found.items()} == {
        "packed_ranks": [("fp8xmxfp4", 0)],
        "unfused_ranks": [("fp8xfp8", None), ("fp8xmxfp4", 0)],
    }
    (ring,) = found["packed_ranks"]
    kernels = prepare.kernels(["soak"], ring, 1)
    assert {one.num_sms for one in kernels} == {16} and all(one.ring_blocks for one in kernels if one.problem.max_tokens_per_rank >= 8)
    for options in found["unfused_ranks"]:
        for config in prepare.kernels(["unfused"], options, 1):
            moe = config.problem
            held = mega_moe.symmetric_buffer(moe, SM90).size + stage_bytes(moe)
            weights = 3 * moe.experts_per_rank * moe.hidden * moe.intermediate
            assert 8 * (2 * held + 2 * weights) < 125 << 30


def options_after_pytest(parser: ArgumentParser, command: Sequence[str]) -> GpuOptions:
    """Those of the checks, which follow the file's name."""
    (start,) = [index for index, one in enumerate(command) if one.endswith(".py")]
    return read_options(GpuOptions, parser.parse_args(command[start + 1 :]))


def test_what_prepares_finds_its_modules_by_itself() -> None:
    """As the command runs it: with the package on the path, and not as pytest does."""
    source = Path(validate.__file__).parents[1] / "src"
    command = [sys.executable, prepare.__file__, "--help"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "silicon" in done.stdout, done.stderr


def test_what_runs_was_prepared() -> None:
    """Folders that a step reads are made by one before it."""
    made: set[str] = set()
    for step in validate.steps(Path("folder"), 4, None, Path("out")):
        made |= {one for command in step.prepare for one in command if one.startswith("folder")}
        assert {one for command in step.run for one in command if one.startswith("folder")} <= made


def test_what_is_prepared_is_what_the_checks_run() -> None:
    """Kernels of the layer in groups of all sizes; ranks of a soak divide the GPUs' SMs."""
    layer, soak, unfused = (prepare.kernels([what], GpuOptions(), 4) for what in ("layer", "soak", "unfused"))
    blackwell = prepare.kernels(["layer"], GpuOptions(recipe="mxf4xmxf4"), 2)
    assert {(type(one), one.problem.num_ranks) for one in blackwell} == {
        (kind, n) for kind in (Sm100Config, PreDispatchConfig) for n in (1, 2)
    }
    assert {one.problem.num_ranks for one in layer} == {1, 2, 4} and {type(one) for one in layer} == {Sm90Config, PreDispatchConfig}
    assert {(one.problem.num_ranks, one.num_sms) for one in (*soak, *unfused)} == {(8, 66)}
    assert set(soak) < set(unfused) and len(unfused) == (1 + len(STAGES)) * len(soak)
    assert {one.problem.activation for one in prepare.kernels(["gpt_oss"], GpuOptions(), 1)} == {"swigluoai"}
    assert {one.problem.num_ranks for one in prepare.kernels(["engines"], GpuOptions(), 2)} == {1, 2}


def test_all_steps_run_and_one_that_fails_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[tuple[str, str]] = []

    def execute(name: str, command: Sequence[str], limit_s: int, variables: Mapping[str, str] | None) -> validate.Outcome:
        ran.append((name, script_of(command).name))
        return validate.Outcome(name, "", "FAILED" if name == "silicon" else "ok", 1, ())

    monkeypatch.setattr(validate, "execute", execute)
    monkeypatch.setattr(validate.shutil, "which", lambda tool: None)
    some = [one for one in validate.steps(Path("folder"), 1, None, Path("out")) if one.name in ("silicon", "racecheck", "layer")]
    assert [(one.step, one.well) for one in validate.validate("run", some)] == [("silicon", False), ("silicon", False), ("layer", True)]
    assert ran == [("silicon", "test_silicon.py"), ("silicon", "test_gemm_on_gpu.py"), ("layer", "test_layer_on_gpus.py")]
    assert "racecheck: left out, compute-sanitizer is not installed" in capsys.readouterr().out
    assert [one.well for one in validate.validate("prepare", some[1:])] == 4 * [True]  # the layer, bits of both kinds, halves


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
    assert (found.outcome, found.well) == (told, told == "ok")
    shown = capsys.readouterr().out
    assert told in shown and (found.said == ("all bits equal",)) == found.well == ("all bits equal" in shown.splitlines())
    assert found.command.startswith(Path(sys.executable).name)


def test_what_no_time_is_left_for_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    step = validate.Step("slow", (), (["-c", "import time; time.sleep(60)"], ["-c", "pass"]), 30)
    found = validate.validate("run", [step], within_s=1.0)
    assert [one.outcome for one in found] == ["FAILED: not done in 1 s", validate.LEFT_OUT]
    assert not any(one.well for one in found) and validate.LEFT_OUT in capsys.readouterr().out


def test_what_several_steps_need_is_prepared_once() -> None:
    """Each of them has all that it runs, if it is the only one that is asked for."""
    steps = {one.name: one for one in validate.steps(Path("folder"), 2, None, Path("out"))}
    needed = [set(map(tuple, steps[name].prepare)) for name in ("silicon", "layer", "ep")]
    for name in ("racecheck", "memcheck"):
        assert set(map(tuple, steps[name].prepare)) == set.union(*needed)
    command = ["-c", "pass"]
    found = validate.validate("prepare", [validate.Step(name, (command,), (), 30) for name in ("one", "two")])
    assert [one.step for one in found] == ["one"] and found[0].well


def test_an_unknown_step_is_refused() -> None:
    refused = subprocess.run([sys.executable, validate.__file__, "run", "x", "--only", "speed"], capture_output=True, text=True)
    assert (
        refused.returncode == 2
        and "--only speed: must be one of silicon, layer, engines, gpt_oss, ep, racecheck, memcheck, time" in refused.stderr
    )
