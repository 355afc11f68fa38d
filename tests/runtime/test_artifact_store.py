"""The store of compiled kernels and the cache over it: keys, damage, processes, folders that cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact.artifact import Artifact, CompileError
from megamoe_dsl.artifact.cache import compile_ahead
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore, ArtifactWarning, describe_config, read_config
from megamoe_dsl.artifact.workers import compile_into
from megamoe_dsl.json_file import FOLDER_VARIABLE, cache_folder
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem, ProblemError

CONFIG = choose(Problem(256, 128, 4, 2, 2, 64), Target.typical("sm_100a", 2), 16)
SM90 = choose(Problem(256, 128, 4, 2, 2, 64, recipe="fp8xfp8"), Target.typical("sm_90a", 2), 16)
ARTIFACT = Artifact(CONFIG, ".entry kernel(", b"\x7fELF" + bytes(100), 1.5)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Configurations that were compiled, by a compiler that takes no time."""
    seen: list[object] = []

    def compile_kernel(config: Sm100Config) -> Artifact:
        seen.append(config)
        return replace(ARTIFACT, config=config)

    monkeypatch.setattr(artifact_store, "compile_kernel", compile_kernel)
    monkeypatch.setattr(artifact_store, "_WARNED", set())
    return seen


def test_a_kernel_is_compiled_once(tmp_path: Path, compiled: list[object]) -> None:
    store = ArtifactStore(tmp_path / "new" / "folder")
    first, second = store.get(CONFIG), store.get(CONFIG)
    assert compiled == [CONFIG]
    assert (second.ptx, second.cubin, second.config, second.seconds) == (first.ptx, first.cubin, CONFIG, 1.5)
    assert not list(store.folder.glob("*.partial"))


def test_every_field_and_the_architecture_are_part_of_the_key(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    others = [CONFIG.replace(num_sms=4), CONFIG.replace(problem=replace(CONFIG.problem, activation_clamp=10.0)), SM90]
    assert len({store.path(config) for config in (CONFIG, *others)}) == 4
    for config in (CONFIG, *others):
        assert read_config(json.loads(json.dumps(describe_config(config)))) == config


def test_a_field_that_these_sources_do_not_know_is_named() -> None:
    values = describe_config(CONFIG)
    del values["trace"]  # which has a default
    assert read_config(values) == CONFIG
    with pytest.raises(ArtifactError, match="configuration field 'color' is unknown: the kernel was compiled by other sources"):
        read_config({**values, "color": 1})


def test_other_sources_are_stale_and_replaced(tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)
    old = store.save(ARTIFACT)
    monkeypatch.setattr(artifact_store, "source_digest", lambda kernel: "01234567")
    with pytest.raises(ArtifactError, match="other sources"):
        store.load(CONFIG)
    assert store.load(CONFIG, any_sources=True).cubin == ARTIFACT.cubin
    assert store.origin(CONFIG) == {"sources": old.name.split("-")[-1][:8], "dsl": artifact_store.dsl_version()}
    store.get(CONFIG)
    assert compiled == [CONFIG]
    assert not old.exists()


def test_a_configuration_of_values_that_are_refused_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)
    store.save(ARTIFACT)
    with monkeypatch.context() as patch:
        patch.setattr(artifact_store, "describe_config", lambda config: {**describe_config(config), "num_stages": -1})
        store.save(replace(ARTIFACT, config=SM90))
    assert len(list(tmp_path.iterdir())) == 2 and [*store.configs(MegaMoeConfig)] == [CONFIG]


def test_a_folder_without_the_kernel_has_none_of_other_sources_either(tmp_path: Path) -> None:
    for any_sources in (False, True):
        with pytest.raises(ArtifactError, match="has no kernel for it: "):
            ArtifactStore(tmp_path).load(CONFIG, any_sources=any_sources)


def test_a_dsl_is_one_that_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_store, "find_spec", lambda name: None)
    assert artifact_store.dsl_version.__wrapped__() is None
    monkeypatch.setattr(artifact_store, "find_spec", lambda name: {"cutlass": object()}.get(name))
    monkeypatch.setattr(artifact_store, "version", lambda name: {"nvidia-cutlass-dsl": "9.8.7"}[name])
    assert artifact_store.dsl_version.__wrapped__() == "9.8.7"


def test_another_dsl_is_stale_only_where_a_dsl_is_installed(
    tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    store.save(ARTIFACT)
    monkeypatch.setattr(artifact_store, "dsl_version", lambda: None)
    assert store.load(CONFIG).ptx == ARTIFACT.ptx
    monkeypatch.setattr(artifact_store, "dsl_version", lambda: "99.0")
    with pytest.raises(ArtifactError, match=r"99\.0"):
        store.load(CONFIG)
    assert store.load(CONFIG, any_sources=True).ptx == ARTIFACT.ptx
    store.get(CONFIG)
    assert compiled == [CONFIG]


@pytest.mark.parametrize(
    "damage", ["empty", "cut", "flipped", "text", "no head", "a list for a head", "a list in the head", "another configuration"]
)
def test_a_damaged_file_is_rebuilt(tmp_path: Path, compiled: list[object], damage: str) -> None:
    store = ArtifactStore(tmp_path)
    path = store.save(ARTIFACT)
    content = bytearray(path.read_bytes())
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        with zipfile.ZipFile(path) as file:
            inside = file.getinfo("kernel.ptx").header_offset + 30 + len("kernel.ptx") + 3
        content[inside] ^= 0xFF
        path.write_bytes(content)
    elif damage == "text":
        path.write_text("not a zip file")
    elif damage == "no head":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("kernel.ptx", "")
    elif damage.startswith("a list"):
        head: object = [] if damage == "a list for a head" else {"config": ["kind"]}
        with zipfile.ZipFile(path, "w") as file:
            for name, text in {"config.json": json.dumps(head), "kernel.ptx": "", "kernel.cubin": ""}.items():
                file.writestr(name, text)
        with pytest.raises(ArtifactError, match=r"config\.json describes no configuration"):
            store.load(CONFIG)
    else:
        path.write_bytes(store.save(replace(ARTIFACT, config=CONFIG.replace(num_sms=4))).read_bytes())
    assert CONFIG not in list(store.configs(Sm100Config))
    assert store.get(CONFIG).cubin == ARTIFACT.cubin
    assert store.load(CONFIG).cubin == ARTIFACT.cubin
    assert compiled == [CONFIG]


def test_without_a_dsl_a_missing_kernel_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_store, "find_spec", lambda name: None)
    with pytest.raises(ArtifactError, match="no kernel"):
        ArtifactStore(tmp_path).get(CONFIG)


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")  # permissions would not stop root
    monkeypatch.setenv(FOLDER_VARIABLE, str(in_the_way / "cache"))
    for _ in range(2):
        assert ArtifactStore(cache_folder()).get(CONFIG).cubin == ARTIFACT.cubin
    assert compiled == [CONFIG, CONFIG]
    assert [one.category for one in recwarn] == [ArtifactWarning]
    assert "cannot be stored in" in str(recwarn[0].message)
    ArtifactStore(in_the_way / "another").get(CONFIG)
    assert len(recwarn) == 2, "each folder has a warning of its own"


@pytest.mark.parametrize(("error", "why"), [(OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")])
def test_a_kernel_that_cannot_be_saved_is_used(
    error: OSError, why: str, tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object) -> None:
        raise error

    monkeypatch.setattr(ArtifactStore, "save", save)
    with pytest.warns(ArtifactWarning, match=rf"^kernels cannot be stored in {tmp_path} \({why}\) and are compiled anew$") as warned:
        assert [ArtifactStore(tmp_path).get(CONFIG).cubin for _ in range(2)] == [ARTIFACT.cubin] * 2
    assert compiled == [CONFIG] * 2 and len(warned) == 1
    monkeypatch.setattr(artifact_store, "make_own_folder", save)
    assert ArtifactStore(tmp_path).why_unusable() == why


@pytest.mark.parametrize("error", [NotImplementedError("no flock"), OSError(37, "No locks available")])
def test_a_file_system_without_locks_keeps_nobody_from_compiling(
    error: Exception, tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", acquire)
    store = ArtifactStore(tmp_path)
    assert store.get(CONFIG).cubin == store.load(CONFIG).cubin and compiled == [CONFIG]


@pytest.mark.parametrize(("jobs", "embedded"), [(1, False), (2, True)])
def test_one_process_says_what_is_done_as_several_do(
    jobs: int, embedded: bool, tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python runs in another program, and there is nothing to start."""
    if embedded:
        monkeypatch.setattr(sys, "executable", "")
    done: list[object] = []
    compile_into(tmp_path, [CONFIG, SM90], jobs, lambda config: done.append((config, len(compiled))))
    assert done == [(CONFIG, 1), (SM90, 2)]


@pytest.mark.parametrize(("command", "code"), [("false", 1), ("true", 0)])
def test_a_process_that_compiles_no_more_is_an_error(command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(sys, "executable", shutil.which(command))
    with pytest.raises(CompileError, match=rf"^a compiling process ended with exit code (-9|{code}): Sm(90|100)Config"):
        compile_into(tmp_path, [CONFIG, SM90], 2, done.append)
    assert not done and not list(tmp_path.iterdir())


def test_a_compiling_process_leads_a_group_and_finds_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's interrupt does not reach it, and a path that only this process has does."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nread line\necho $$ $(cut -d' ' -f5 /proc/$$/stat) $PYTHONPATH\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.syspath_prepend("/only/here")
    with pytest.raises(CompileError) as caught:
        compile_into(tmp_path, [CONFIG, SM90], 2)
    process, group, path = str(caught.value).split(" ", 2)
    assert process == group and path.split(os.pathsep)[0] == "/only/here"


ANSWERS = r"""
import os
from megamoe_dsl.artifact import workers
wrong = ["of two\nlines"]
def get(*_):
    os.write(1, b"what the DSL prints")
    if wrong:
        raise ValueError(wrong.pop())
workers.ArtifactStore.get = get
workers.main()
"""


def test_answers_are_all_that_a_compiling_process_says(tmp_path: Path) -> None:
    """Errors too have one line.  And it ends in silence when nobody listens."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", ANSWERS, str(tmp_path)], text=True, **pipes) as process:
        asked = json.dumps(describe_config(CONFIG)) + "\n"
        for answer in ("ValueError: of two lines\n", "stored\n"):
            process.stdin.write(asked)
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdout.close()
        _, errors = process.stdin.write(asked), process.communicate(timeout=60)[1]
    assert process.returncode == 0 and errors == "what the DSL prints" * 3


def test_a_stored_kernel_in_a_read_only_folder_is_used(tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    ArtifactStore(tmp_path).save(ARTIFACT)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert compile_ahead([CONFIG, CONFIG], ArtifactStore(tmp_path), 2) == 0
    with pytest.raises(ProblemError, match=r"artifacts = '.*': must be a folder that can be written"):
        compile_ahead([CONFIG, SM90], ArtifactStore(tmp_path), 2, "artifacts")
    assert ArtifactStore(cache_folder()).get(CONFIG).cubin == ARTIFACT.cubin
    assert compiled == []


PROCESS = """
import sys, time
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact.store import ArtifactStore, read_config
from megamoe_dsl.artifact.artifact import Artifact, CompileError
import json
config = read_config(json.loads(sys.argv[2]))
def compile_kernel(config):
    time.sleep(0.5)
    print("compiled", flush=True)
    return Artifact(config, ".entry kernel(", b"x" * 1000, 1.0)
artifact_store.compile_kernel = compile_kernel
assert ArtifactStore(sys.argv[1]).get(config).cubin == b"x" * 1000
"""


def test_of_several_processes_one_compiles(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PROCESS, str(tmp_path), json.dumps(describe_config(CONFIG))]
    processes = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert "".join(outputs).count("compiled") == 1


def test_the_folder_is_the_platforms_unless_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert cache_folder().name == "megamoe_dsl"
