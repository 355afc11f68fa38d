"""What strangers give the command: each is one clear line and an exit code, before anything is compiled, and nothing waits."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from io import StringIO
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cutlass.base_dsl.common import DSLRuntimeError
from typer.testing import CliRunner, Result

from megamoe_dsl import __version__
from megamoe_dsl.artifact import workers
from megamoe_dsl.artifact.compile import calling_the_dsl
from megamoe_dsl.cli import INTERRUPTED, main
from megamoe_dsl.cli.app import app, drop_stdout, fail, said
from megamoe_dsl.cli.bench import check_kernel
from megamoe_dsl.cli.output_file import require_writable_files
from megamoe_dsl.inspect.inspection import SECTIONS
from megamoe_dsl.interrupts import held_interrupts
from megamoe_dsl.options.points import BenchOptions
from megamoe_dsl.problem import ProblemError
from sweep import rarely

SMALL = ["--hidden", "256", "--intermediate", "128", "--experts", "4", "--topk", "2", "--ranks", "2"]
INSPECT, SIMULATE = ["inspect", *SMALL], ["simulate", *SMALL, "--sms", "2"]
GEMM = ["simulate", "--kernel", "gemm", "--fields"]
TUNE, TIMELINE, POOL = ["tune", "--from"], ["layout", "timeline", "--trace"], ["layout", "pool", "--tokens", "8", "--pool-rows"]
runner = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"})
DEEP = "[" * 100_000


def run(*arguments: str) -> Result:
    return runner.invoke(app, list(arguments))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Makes what a case names in braces, in an empty folder."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "deep").write_text(DEEP)
    (tmp_path / "list").write_text("[]")
    (tmp_path / "link").symlink_to("same")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    (tmp_path / "flat").write_text(json.dumps(dict.fromkeys(SECTIONS, 3)))
    names = {one: str(tmp_path / one) for one in ("pipe", "loop", "deep", "list", "binary", "flat", "missing", "same", "link")}
    yield lambda text: text.format(folder=tmp_path, **names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*INSPECT, "--diff", "{pipe}"], "{pipe}: a named pipe: must be a regular file"),
        ([*INSPECT, "--diff", "/dev/zero"], "/dev/zero: a device: must be a regular file"),
        ([*INSPECT, "--diff", "{deep}"], "{deep}: no JSON that can be read: nested too deeply"),
        ([*INSPECT, "--diff", "{binary}"], "{binary}: no JSON that can be read"),
        ([*INSPECT, "--diff", "{list}"], "{list}: not a file that `megamoe inspect --json` wrote"),
        ([*INSPECT, "--diff", "{flat}"], "{flat}: not a file that `megamoe inspect --json` wrote: problem must be an object"),
        ([*INSPECT, "--ptx", "{loop}"], "--ptx = '{loop}': must be a path of a file (Too many levels of symbolic links)"),
        ([*INSPECT, "--sass", "{folder}/" + "n" * 300], "must be a path of a file (File name too long)"),
        ([*INSPECT, "--ptx", "{pipe}"], "--ptx = '{pipe}': must be a file, or a pipe that somebody reads"),
        ([*INSPECT, "--ptx", "{same}", "--sass", "{same}"], "--sass = '{same}': must be another file than --ptx"),
        ([*INSPECT, "--ptx", "{same}", "--sass", "{link}"], "--sass = '{link}': must be another file than --ptx"),
        ([*INSPECT, "--sms", "100000"], "--sms = 100000: must be at most 256"),
        (["layout", "swizzle", "--svg", "{loop}"], "--svg = '{loop}': must be a path of a file"),
        (["layout", "swizzle", "--svg", "/dev/full"], "/dev/full: No space left on device"),
        ([*TIMELINE, "{pipe}"], "{pipe}: a named pipe: must be a regular file"),
        ([*TIMELINE, "/dev/zero"], "/dev/zero: a device: must be a regular file"),
        ([*TIMELINE, "{deep}"], "{deep}: no JSON that can be read: nested too deeply"),
        ([*TIMELINE, "{missing}"], "{missing}: No such file or directory"),
        ([*TUNE, "{pipe}"], "{pipe}: "),
        ([*TUNE, "/dev/zero"], "/dev/zero: "),
        ([*TUNE, "{deep}"], "{deep}: "),
        ([*TUNE, "{folder}"], "{folder}: "),
        ([*TUNE, "{deep}", "--kernel", "gemm"], "{deep}: "),
        ([*TUNE, "{pipe}", "--kernel", "dispatch_grouped_gemm"], "{pipe}: "),
        ([*POOL, "64"], "--pool-rows = 64: must be None or a multiple of 128"),
        ([*POOL, "1024"], "--pool-rows = 1024: must be None, or at least 6528, on sm_100a"),
        ([*SIMULATE, "--tokens", "\u0663"], "--tokens = '\u0663': must be numbers separated by commas"),
        ([*SIMULATE, "--tokens", "1_000"], "--tokens = '1_000': must be numbers separated by commas"),
        ([*SIMULATE, "--tokens", "9" * 5000], "must be numbers separated by commas"),
        ([*SIMULATE, "--tokens", "1,-2"], "--tokens = -2: must be at least 0"),
        ([*SIMULATE, "--mask", "2"], "--mask = 2.0: must be between 0 and 1"),
        ([*SIMULATE, "--sms", "0"], "--sms = 0: must be"),
        ([*SIMULATE, "--ranks", "8", "--experts", "16", "--sms", "256"], "--sms = 256: must be less, or given with --no-race"),
        ([*SIMULATE, "--kernel", "pre_dispatch"], "--kernel = 'pre_dispatch': must be one that this command simulates: mega_moe, gemm, "),
        ([*SIMULATE, "--kernel", "combine"], "--kernel = 'combine': must be one of mega_moe, pre_dispatch"),
        ([*SIMULATE, "--tokens", "1,,2"], "--tokens = '1,,2': must be numbers separated by commas"),
        ([*SIMULATE, "--tokens", "1000000"], "--yes = False: must be given to start what takes about"),
        ([*GEMM, "n=7168,k=7168", "--tokens", "100000"], "--yes = False: must be given to start what takes about"),
        ([*GEMM, "n=7168"], "--fields = 'n=7168': must be given with n=NUMBER, k=NUMBER of --kernel gemm"),
        ([*GEMM, "n=7168,k=7_168"], "k = '7_168': must be an integer"),
        ([*GEMM, "n=128,k=128,transposed_b=1"], "transposed_b = '1': must be true or false"),
        ([*GEMM, "n=128,k=128,n=256"], "--fields = 'n=128,k=128,n=256': must be given with n once"),
        ([*GEMM, "n=128,k=128", "--choices", "num_sms=4"], "--choices = 'num_sms=4': must be FIELD=VALUE with one of block_m"),
        ([*GEMM, "n=128,k=128", "--seed", "99999999999999999999"], "--seed = 99999999999999999999: must be between -2^63 and 2^64 - 1"),
        ([*GEMM, "n=128,k=128", "--mask", "0.5"], "--mask = 0.5: must be left out with --kernel gemm"),
        ([*GEMM, "n=128,k=128", "--skew"], "--skew = True: must be left out with --kernel gemm"),
        ([*SIMULATE, "--launches", "0"], "--launches = 0: must be between 1 and 1000"),
        ([*INSPECT, "--hidden", "1000000000000"], "--hidden = 1000000000000: must be at most 262144"),
        ([*INSPECT, "--recipe", "FP8"], "--recipe = 'FP8': must be one of fp8xfp4"),
        (["export", "{folder}", *SMALL, "--name", "a\nb"], "name = 'a\\nb': must be a file name without a folder"),
        (["export", "{folder}", *SMALL, "--name", "n" * 300], "printable, of at most 200 bytes"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(arguments: list[str], message: str, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.artifact.compile.compile_kernel", None)
    result = run(*map(place, arguments))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ") and place(message) in line


def test_a_file_is_written_where_a_new_one_can_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is no file: it may be named twice, and its folder does not matter."""
    there, new = tmp_path / "there", tmp_path / "new"
    there.touch()
    for closed, refused in ((tmp_path, {there, new}), (there, {there}), (Path("/dev"), set()), (Path("/dev/null"), {Path("/dev/null")})):
        monkeypatch.setattr(os, "access", lambda path, mode, closed=closed: Path(path) != closed)
        for path in (there, new, Path("/dev/null")):
            with pytest.raises(ProblemError, match=r"--ptx = .*: must be a file that can be written") if path in refused else nullcontext():
                require_writable_files({"--ptx": path})
    require_writable_files(dict.fromkeys(("--trace", "--svg"), Path("/dev/zero")))


def test_a_pipe_that_somebody_reads_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert run("layout", "swizzle", "--svg", str(tmp_path / "pipe")).exit_code == 0
    assert os.read(reader, 5) == b"<?xml"
    os.close(reader)


@dataclass
class Raised:
    """A command's bug or trouble, in place of `print_version`'s text."""

    error: BaseException

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError("Unable to allocate 4 TiB"), 2, "error: memory: Unable to allocate 4 TiB"),
        (MemoryError(), 2, "error: memory: there is not enough"),
        (OSError(28, "No space left on device", "here"), 2, "error: here: No space left on device"),
        (OSError(5, "Input/output error"), 2, "error: Input/output error"),
        (OSError("no room"), 2, "error: no room"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
    ],
)
def test_what_the_machine_lacks_is_one_line(error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.app.__version__", Raised(error))
    result = run("--version")
    assert (result.exit_code, result.stderr.strip()) == (code, line)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.app.__version__", Raised(RuntimeError("a bug")))
    assert isinstance(run("--version").exception, RuntimeError)
    assert said(RuntimeError("a bug")) is None


def test_the_first_line_stands_out_and_no_line_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = ["no warp can make progress: " + "long " * 20, "  warp 3 [waits] " + "at a barrier " * 9, "  warp 4"]
    with pytest.raises(SystemExit) as ended:
        fail("\n".join(lines))
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "\n".join([f"error: {lines[0]}", *lines[1:], ""]))


@pytest.mark.parametrize(("dsl", "text"), [("4.5.0", "nvidia-cutlass-dsl 4.5.0"), (None, "no nvidia-cutlass-dsl")])
def test_the_version_says_whether_there_is_a_compiler(dsl: str | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megamoe_dsl.cli.app.dsl_version", lambda: dsl)
    assert run("--version").output == f"megamoe_dsl {__version__}, {text}\n"


@pytest.mark.parametrize("arguments", [["--version"], rarely([*INSPECT, "--tokens", "4", "--sms", "4", "--json"])])
def test_a_full_stdout_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "megamoe_dsl", *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: stdout: No space left on device\n")


def test_a_process_without_streams_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["megamoe", "--version"])
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_an_interrupt_of_the_command_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on interrupts are ignored, as what is left is to end; streams that there are stay."""
    named, ignored, streams = list[str](), list[Any](), (sys.stdout, sys.stderr)

    def command(prog_name: str) -> None:
        named.append(prog_name)
        assert (sys.stdout, sys.stderr) == streams and not ignored
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "megamoe_dsl.cli.app", SimpleNamespace(app=command))
    monkeypatch.setattr("signal.signal", lambda *given: ignored.append(given))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, named, ignored) == (130, ["megamoe"], [(signal.SIGINT, signal.SIG_IGN)])


@pytest.mark.parametrize(
    ("filename", "place", "text"),
    [
        ("here", None, "here: No space left on device"),
        (0, None, "0: No space left on device"),
        (None, None, "No space left on device"),  # a stdout that is no file
        (None, "/dev/null", "No space left on device"),  # one that takes all
        (None, "/dev/full", "stdout: No space left on device"),
    ],
)
def test_an_error_without_a_file_is_stdouts_where_that_takes_no_more(
    filename: str | int | None, place: str | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what is left for it goes nowhere, and the process can end."""
    with StringIO() if place is None else open(place, "w") as stream:
        stream.write("unwritten")
        monkeypatch.setattr(sys, "stdout", stream)
        assert said(OSError(errno.ENOSPC, "No space left on device", filename)) == text
        assert not drop_stdout(), "it takes all now"
        assert place is None or os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
        monkeypatch.undo()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where this process began in a shell's background and so ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_command_quietly_while_modules_are_imported() -> None:
    """What a shell calls 130: the exit code, or a signal's death."""
    code = "import signal, sys; from megamoe_dsl.cli import main; "
    code += "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT)); "
    code += "signal.setitimer(signal.ITIMER_REAL, 0.03); main()"
    done = subprocess.run([sys.executable, "-c", code, *INSPECT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) in [(INTERRUPTED, "", ""), (-2, "", "")]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_for_native_code() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_what_the_system_refuses_the_dsl_is_no_compile_error() -> None:
    """And an interrupt waits until a compilation has ended."""
    with pytest.raises(OSError, match="No space left"), calling_the_dsl():
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise DSLRuntimeError("no files")  # noqa: B904  (as the DSL does)
    compiled = []
    with pytest.raises(KeyboardInterrupt), calling_the_dsl():
        signal.raise_signal(signal.SIGINT)
        compiled.append("the rest")
    assert compiled


def test_another_thread_compiles_as_the_main_one() -> None:
    """Which alone may say what an interrupt does."""
    found = []

    def compile_there() -> None:
        with held_interrupts():
            found.append("compiled")

    thread = threading.Thread(target=compile_there)
    thread.start()
    thread.join()
    assert found == ["compiled"]


def test_handlers_that_are_not_pythons_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a program that embeds Python."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("replaced"))
    with held_interrupts():
        pass


def test_an_interrupt_takes_work_from_compiling_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emptied = []

    def feed(folder: Path, waiting: Iterator[int], done: Callable[[int], None]) -> None:
        if next(waiting, None) == 0:
            raise KeyboardInterrupt
        for _ in range(500):
            if not length_hint(waiting):
                emptied.append(True)
                break
            time.sleep(0.01)

    monkeypatch.setattr(workers, "feed", feed)
    with pytest.raises(KeyboardInterrupt):
        workers.compile_into(tmp_path, list(range(9)), 2)  # type: ignore[arg-type]
    assert emptied == [True]


@pytest.mark.parametrize(
    ("kernel", "points", "options", "message"),
    [
        ("gemm", "512", {"recipe": "bf16xbf16", "artifacts": Path("a"), "out": Path("b"), "variants": True}, ""),
        ("gemm", None, {"ranks": 2}, "--ranks = 2: must be left out with --kernel gemm"),
        ("gemm", None, {"remote": 0.0}, "--remote = 0.0: must be left out with --kernel gemm"),
        ("gemm", None, {"watchdog_ms": 1}, "--watchdog-ms = 1: must be left out with --kernel gemm"),
        ("grouped_gemm_combine", None, {"tokens": "8", "watchdog_ms": 1, "trace": True}, ""),
        ("grouped_gemm_combine", None, {"no_graphs": True}, "--no-graphs = True: must be left out with --kernel grouped_gemm_combine"),
        ("mega_moe", None, {"no_graphs": True, "ranks": 2, "trace": True}, ""),
        ("mega_moe", "512", {}, "--points = '512': must be left out with --kernel mega_moe"),
        ("top_experts", None, {}, "--kernel = 'top_experts': must be mega_moe, gemm, dispatch_grouped_gemm or grouped_gemm_combine"),
    ],
)
def test_options_that_a_kernel_does_not_take(kernel: str, points: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError) if message else nullcontext() as caught:
        check_kernel(kernel, points, BenchOptions(**options))
    assert not message or str(caught.value) == message
