"""The `megamoe` command: help, errors, JSON, and what simulate says of right and wrong results."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import cutlass.cute as cute
import pytest
from cutlass.base_dsl.common import DSLRuntimeError
from rich.console import Console
from typer.testing import CliRunner

from megamoe_dsl import Problem, Target, __version__, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.cli import simulations
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.inspect import print_inspection
from megamoe_dsl.cli.tables import facts
from megamoe_dsl.device import ring
from megamoe_dsl.device.mbarrier import arrive
from megamoe_dsl.inspect import Inspection
from megamoe_dsl.inspect.inspection import SECTIONS
from megamoe_dsl.runtime.simulated import RankComparison, SimulatedMoE
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.sass import listing
from megamoe_dsl.sass.listing import DisassemblyError
from megamoe_dsl.sim import Deadlock
from sweep import sample

SMALL = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--ranks", "2"]
SIMULATE = ["simulate", *SMALL, "--sms", "2", "--tokens", "3,0"]
LONG_SUMS = ["--hidden", "16384", "--experts", "1", "--topk", "1", "--ranks", "1", "--tokens", "8"]
runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture(scope="module")
def kernels() -> Callable[..., Artifact]:
    """`compile_kernel` that knows what it has compiled."""
    return cache(compile_kernel)


@pytest.fixture
def compiled_once(kernels: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a command says of a kernel that others of this file have too."""
    monkeypatch.setattr("megamoe_dsl.artifact.compile.compile_kernel", kernels)


@pytest.mark.parametrize("command", [[], ["inspect"], ["simulate"]])
def test_help(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize(("command", "has_sm90"), [("inspect", True), ("export", True), ("simulate", True), ("layout", True)])
def test_help_names_the_tiles_of_the_commands_architectures(command: str, has_sm90: bool) -> None:
    result = runner.invoke(app, [command, "--help"], env={"COLUMNS": "300"})
    assert "Tokens of a tile: 16, 32, 64, 96, 128 or 192" in result.output
    assert ("sm_90a: 8, 16, 32, 64 or 128" in result.output) == has_sm90


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "--preset", "flush"], "--preset = 'flush': must be one of flash, pro"),
        (["inspect", "--hidden", "512"], "--intermediate = None: must be given, or taken from a --preset"),
        (["inspect", "--preset", "flash", "--hidden", "100"], "--hidden = 100: must be a multiple of 32"),
        (["inspect", "--preset", "flash", "--experts", "255"], "--experts = 255: must be a multiple of --ranks = 8"),
        (["inspect", "--preset", "flash", "--topk", "33"], "--topk = 33: must be at most 32"),
        (["inspect", "--preset", "flash", "--block-m", "48"], "--block-m = 48: must be one of [16, 32, 64, 96, 128, 192]"),
        (["inspect", "--preset", "flash", "--block-k", "256"], "--block-k = 256: must be 128 for fp8xfp4"),
        (["inspect", "--preset", "flash", "--recipe", "mxf4xmxf4", "--block-m", "16"], "--block-m = 16: must be one of [32, 64, 96,"),
        (
            ["inspect", "--preset", "flash", "--arch", "sm_90a", "--block-k", "128"],
            "--block-k = 128: must be left out with --kernel mega_moe for sm_90a",
        ),
        (["inspect", "--preset", "flash", "--sms", "147"], "--sms = 147: must be a positive multiple of 2"),
        (["inspect", "--preset", "flash", "--clamp", "-1"], "--clamp = -1.0: must be None or a number between"),
        (["inspect", "--preset", "flash", "--clamp", "1e39"], "--clamp = 1e+39: must be None or a number between"),
        (["inspect", "--preset", "flash", "--combine", "fp8"], "--combine = 'fp8': must be bf16 or e4m3"),
        (["inspect", "--preset", "flash", "--arch", "sm_89"], "--arch = 'sm_89': must be one of sm_100a, sm_90a"),
        (["inspect", "--preset", "flash", "--arch", "sm_90a", "--block-m", "192"], "--block-m = 192: must be one of"),
        (["inspect", "--preset", "flash", "--tokens", "9", "--max-tokens", "8"], "--tokens = 9: must be between 0 and --max-tokens = 8"),
        (["inspect", "--preset", "flash", "--json", "--diff", __file__], f"--diff = {__file__!r}: must be left out with --json"),
        (["simulate", *SMALL, "--tokens", "1,2,3"], "--tokens = '1,2,3': must be one number, or one for each of 2 ranks"),
        (["simulate", *SMALL, "--tokens", "some"], "--tokens = 'some': must be numbers separated by commas"),
        (["simulate", *SMALL, "--mask", "1.5"], "--mask = 1.5: must be between 0"),
        (["simulate", *SMALL, "--ranks", "0", "--tokens", "3,2"], "--ranks = 0: must be between 1 and 128"),
        (["simulate", *SMALL, "--ranks", "-1"], "--ranks = -1: must be between 1 and 128"),
        (["simulate", "--preset", "flash", "--ranks", "0"], "--ranks = 0: must be between 1 and 128"),
        (
            [*SIMULATE, "--seed", "18446744073709551615", "--launches", "2"],
            "--seed = 18446744073709551616: must be between",
        ),
        ([*SIMULATE, "--seed", "-9223372036854775809"], "--seed = -9223372036854775809: must be between -2^63 and 2^64 - 1"),
        ([*SIMULATE, "--mask", "nan"], "--mask = nan: must be between 0 and 1"),
        (
            ["simulate", "--preset", "flash", "--ranks", "8", "--sms", "148"],
            "--sms = 148: must be less, or given with --no-race: 21,312 warps and engines on 8 ranks, the race detector tells 16,384 apart",
        ),
        (
            [*SIMULATE, "--experts", "8", "--ranks", "8", "--tokens", "13", "--sms", "148"],
            "--sms = 148: must be less, or given with --no-race: 16,576 warps",
        ),  # 7,104 of warps
        (["inspect", "--preset", "flash", "--tokens", "20000000"], "--tokens = 20000000: must be less than 2^27 / 48"),
        (["inspect", "--preset", "flash", "--max-tokens", "20000000"], "--max-tokens = 20000000: must be less than 2^27 / 48"),
        (["inspect", *SMALL, "--stages", "99"], "--stages = 99: must be"),
        (["inspect", *SMALL, "--ptx", "/nowhere/k.ptx"], "--ptx = '/nowhere/k.ptx': must be in a folder that is there: /nowhere is none"),
        (["inspect", *SMALL, "--sass", "/"], "--sass = '/': must be a file, not a folder"),
        (["layout", "smem", "--svg", "/nowhere/k.svg"], "--svg = '/nowhere/k.svg': must be in a folder that is there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cute, "compile", None)  # all of it is known before anything is compiled
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert f"error: {message}" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_data_that_is_never_exact_is_one_line_and_exit_code_2() -> None:
    result = runner.invoke(app, [*SIMULATE, *LONG_SUMS])
    assert result.exit_code == 2
    assert "error: expert 0: sums of Linear1 reach" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_full_disk_names_the_file_and_leaves_none_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "swizzle.svg"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", fail)
    result = runner.invoke(app, ["layout", "swizzle", "--svg", str(path)])
    assert result.exit_code == 2
    assert result.stderr.strip() == f"error: {path}: No space left on device"
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_as_a_whole_and_a_device_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "here.svg", tmp_path / "link.svg"
    target.write_text("before")
    target.chmod(0o750)
    link.symlink_to(target)
    new = tmp_path / "new.svg"
    for path in (link, new, Path("/dev/null")):
        assert runner.invoke(app, ["layout", "swizzle", "--svg", str(path)]).exit_code == 0
    assert link.is_symlink() and target.read_text().startswith("<?xml")
    assert [one.stat().st_mode & 0o777 for one in (target, new)] == [0o750, 0o644]
    assert Path("/dev/null").is_char_device()
    assert sorted(tmp_path.iterdir()) == [target, link, new]


@pytest.mark.usefixtures("compiled_once")
def test_inspect_json_and_files(tmp_path: Path) -> None:
    files = {name: tmp_path / f"kernel.{name}" for name in ("ptx", "sass", "json")}
    arguments = ["inspect", *SMALL, "--sms", "4", "--tokens", "16"]
    result = runner.invoke(app, [*arguments, "--json", "--ptx", str(files["ptx"]), "--sass", str(files["sass"])])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["resources"]["stack_bytes"] == 0
    assert found["measures"]["mma_k_block"]["kinds"]["mma"] == 4
    ptx = files["ptx"].read_text()
    assert ".entry" in ptx
    (where,) = set(re.findall(r"// (mma\.py:\d+) multiply_tile\n\s*\.loc", ptx)[:1])
    assert where and ptx.count("\t.loc") == len(re.findall(r"// [\w.]+:\d+( \w+)?\n\s*\.loc", ptx))
    assert "UTCQMMA" in files["sass"].read_text()

    files["json"].write_text(result.stdout)
    same = runner.invoke(app, [*arguments, "--diff", str(files["json"])])
    assert "Nothing differs" in same.output
    other = runner.invoke(app, [*arguments, "--block-m", "64", "--diff", str(files["json"])])
    assert re.search(rf"config\.block_m +{found['config']['block_m']} +64 ", other.output)
    hopper = runner.invoke(app, [*arguments, "--arch", "sm_90a", "--diff", str(files["json"])])
    assert hopper.exit_code == 0, hopper.output
    assert "measures.math_k_block.instructions" in hopper.output and "…" not in hopper.output
    narrow = runner.invoke(app, [*arguments, "--arch", "sm_90a", "--diff", str(files["json"])], env={"COLUMNS": "40"})
    assert "…" not in narrow.output


def test_diff_with_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    result = runner.invoke(app, ["inspect", *SMALL, "--ptx", str(tmp_path / "new.ptx"), "--diff", str(path)])
    assert result.exit_code == 2
    assert "not a file that `megamoe inspect --json` wrote" in result.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("compiled_once")
def test_inspect_shows_tables() -> None:
    result = runner.invoke(app, ["inspect", *SMALL, "--sms", "4", "--tokens", "16"])
    assert result.exit_code == 0, result.output
    for heading in ("Problem", "Configuration", "Artifact", "SMEM", "TMEM", "mbarriers", "Instructions per unit of work"):
        assert heading in result.output


def test_narrow_tables_lose_no_digit() -> None:
    config = choose(Problem(256, 128, 4, 2, recipe="fp8xfp8"), Target.typical("sm_90a", 4), 16)
    found = Inspection.of(compile_kernel(config, line_info=True))
    figure, name = 1234.5, "a_field_of_shared_memory_with_a_long_name"
    found = replace(found, measures=[replace(one, instructions=figure) for one in found.measures])
    for columns in (40, 80, 200):
        console = Console(width=columns, file=StringIO())
        print_inspection(console, found)
        console.print(facts("Facts", [(name, 10**60)]))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in text
        assert columns < 80 or text.count(f" {figure} ") == len(found.measures)
        assert "".join(re.findall(r"\d", text.partition("Facts")[2])) == str(10**60)


@pytest.mark.usefixtures("compiled_once")
def test_ptx_without_nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DisassemblyError("nvdisasm is not installed")

    monkeypatch.setattr(listing, "find_nvdisasm", fail)
    path = tmp_path / "k.ptx"
    arguments = ["inspect", *SMALL, "--sms", "4", "--ptx", str(path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"{path} is written; all that comes from SASS is left out: nvdisasm is not installed" in result.output
    assert ".entry" in path.read_text() and "registers" in result.output
    (tmp_path / "before.json").write_text(json.dumps({name: {} for name in SECTIONS}))
    for more in (["--json"], ["--diff", str(tmp_path / "before.json")], ["--sass", str(tmp_path / "k.sass")]):
        result = runner.invoke(app, [*arguments, *more])
        assert result.exit_code == 2 and "error: nvdisasm is not installed" in result.stderr


def test_an_artifact_prints_short() -> None:
    artifact = Artifact(choose(Problem(256, 128, 4, 2), Target.typical("sm_100a"), 3), ".entry kernel(" * 99, b"cubin" * 99, 1.0)
    assert "Sm100Config" in repr(artifact) and "seconds=1.0" in repr(artifact)
    assert ".entry" not in repr(artifact) and "cubin" not in repr(artifact)


@pytest.mark.sweep
def test_inspect_shows_overtaken_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["inspect", *SMALL, "--arch", "sm_90a", "--sms", "4", "--tokens", "16"]
    fine = runner.invoke(app, arguments).output
    assert "that are overtaken" not in fine and "gives their bytes away): none." in fine
    monkeypatch.setattr(ring, "release", lambda barrier, word: arrive(barrier))
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "listed above: the bytes may be overwritten" in result.output
    assert "Loads from SMEM that are overtaken" in result.output and "SYNCS.ARRIVE" in result.output


@pytest.mark.usefixtures("compiled_once")
def test_simulate_passes_twice_on_the_same_buffers() -> None:
    result = runner.invoke(app, [*SIMULATE, "--launches", "2", "--mask", "0.3"])
    assert result.exit_code == 0, result.output
    assert "PASS: every element equals the reference bit for bit; no race found" in result.output


@sample("bf16")
@pytest.mark.parametrize("combine", ["bf16", "e4m3"])
def test_simulate_on_random_data_uses_the_bound(combine: str) -> None:
    result = runner.invoke(app, [*SIMULATE, "--random", "--no-race", "--clamp", "10", "--combine", combine])
    assert result.exit_code == 0, result.output
    assert "PASS: every element is within the error bound" in result.output
    assert "no race found" not in result.output


@pytest.mark.usefixtures("compiled_once")
def test_mismatch_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RankComparison(rank=1, tokens=3, elements=768, unequal=5, violations=5, max_error=0.5, worst=float("inf"))
    right = replace(wrong, rank=0, unequal=0, violations=0, max_error=0.0, worst=0.0)
    monkeypatch.setattr(simulations, "compare", lambda case, y: [right, wrong])
    result = runner.invoke(app, SIMULATE)
    assert result.exit_code == 1
    assert "5 mismatches" in result.output
    assert "FAIL" in result.output


@pytest.mark.parametrize("command", [["inspect"], ["export", "folder"]])
def test_what_the_dsl_reports_is_a_compile_error(command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DSLRuntimeError("no such instruction")

    monkeypatch.setattr(cute, "compile", fail)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, [*command, *SMALL, "--sms", "4"])
    assert result.exit_code == 2
    assert "error: the DSL: " in result.stderr and "no such instruction" in result.stderr and "\x1b" not in result.stderr


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize(
    "error", [WatchdogError("rank 0, SM 1: wait GRID exceeded its limit"), Deadlock("no warp can make progress\n  warp 3")]
)
def test_faults_are_exit_code_2(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(SimulatedMoE, "__call__", fail)
    result = runner.invoke(app, SIMULATE)
    assert result.exit_code == 2
    assert f"error: {str(error).splitlines()[0]}" in result.stderr


@pytest.mark.usefixtures("compiled_once")
def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(SimulatedMoE, "__call__", fail)
    result = runner.invoke(app, SIMULATE)
    assert isinstance(result.exception, ValueError)


@sample("command0")
@pytest.mark.parametrize("command", [["-m", "megamoe_dsl"], ["-c", "from megamoe_dsl.cli import main; main()"]])
def test_the_module_is_the_command_and_says_its_version(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"megamoe_dsl {__version__}, nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')}\n"
    done = subprocess.run([sys.executable, *command, "simulate", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: megamoe simulate" in done.stdout


def test_imports_stay_light() -> None:
    heavy = "('torch', 'cutlass', 'numpy')"
    code = f"import sys, megamoe_dsl, megamoe_dsl.presets, megamoe_dsl.cli; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
