"""What the store of compiled kernels takes as code: its user's own files, whole, of bounded size; anything else counts as missing."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from megamoe_dsl import MegaMoE, Target, choose
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore, ArtifactWarning, kernel_name
from megamoe_dsl.compat.engines.shared_parts import prepared_bounds
from megamoe_dsl.json_file import FOLDER_VARIABLE, FileError
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem

CONFIG = choose(Problem(256, 128, 4, 2, 2, 64), Target.typical("sm_100a", 2), 16)
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


@pytest.fixture
def stored(tmp_path: Path) -> tuple[ArtifactStore, Path]:
    """A store and its one file."""
    store = ArtifactStore(tmp_path / "kernels")
    return store, store.save(ARTIFACT)


def rewrite(path: Path, change: Callable[[dict[str, bytes]], object]) -> None:
    """Changes the parts of a file, which stays a valid zip file."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    change(parts)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, part in parts.items():
            file.writestr(name, part)
    path.chmod(0o644)


def nested(parts: dict[str, bytes]) -> None:
    parts["config.json"] = b'{"config":' * 50_000


def junk(parts: dict[str, bytes]) -> None:
    parts["kernel.cubin"] = b"junk"


def other_ptx(parts: dict[str, bytes]) -> None:
    parts["kernel.ptx"] += b" "


def no_digests(parts: dict[str, bytes]) -> None:
    head = json.loads(parts["config.json"])
    del head["sha256"]
    parts["config.json"] = json.dumps(head).encode()


def a_bomb(parts: dict[str, bytes]) -> None:
    parts["config.json"] = bytes(artifact_store.MOST_BYTES["config.json"] + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nested, "nested too deeply"),
        (junk, "is not what was stored"),
        (other_ptx, "is not what was stored"),
        (no_digests, "is not what was stored"),
        (a_bomb, "config.json has 1048577 bytes, more than 1048576"),
    ],
)
def test_a_valid_zip_of_other_content(
    stored: tuple[ArtifactStore, Path], compiled: list[object], change: Callable[[dict[str, bytes]], object], message: str
) -> None:
    store, path = stored
    rewrite(path, change)
    with pytest.raises(ArtifactError, match=message):
        store.load(CONFIG)
    with pytest.raises(ArtifactError, match=message):
        store.load(CONFIG, any_sources=True)
    assert list(store.configs(Sm100Config)) == []
    assert store.get(CONFIG).cubin == ARTIFACT.cubin and compiled == [CONFIG]
    assert store.load(CONFIG).ptx == ARTIFACT.ptx


@pytest.mark.parametrize(("offset", "value", "message"), [(8, 1, "encrypted"), (10, 14, "compressed by method 14")])
def test_flags_that_no_store_sets(stored: tuple[ArtifactStore, Path], offset: int, value: int, message: str) -> None:
    """Of every part, in the directory at the end of the file: bit 0 says that it is encrypted; method 14 is LZMA."""
    store, path = stored
    content = bytearray(path.read_bytes())
    place = content.find(b"PK\x01\x02")
    while place >= 0:
        content[place + offset] = value
        place = content.find(b"PK\x01\x02", place + 4)
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        store.load(CONFIG)


def test_what_is_no_regular_file(stored: tuple[ArtifactStore, Path], compiled: list[object]) -> None:
    store, path = stored
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ArtifactError, match="a named pipe: must be a regular file"):
        store.load(CONFIG)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert list(store.configs(Sm100Config)) == []
    assert store.get(CONFIG).cubin == ARTIFACT.cubin and compiled == [CONFIG]
    assert path.is_file() and not path.is_symlink()


def test_a_file_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for place, why in ((tmp_path / "none" / "file", "No such file or directory"), (Path("a\0b/file"), "null byte")):
        with pytest.raises(FileError, match=why):
            artifact_store.read_own(place, 1)


def test_a_file_larger_than_any_kernels(stored: tuple[ArtifactStore, Path]) -> None:
    store, path = stored
    with path.open("r+b") as file:
        file.truncate(artifact_store.MOST_FILE_BYTES + 1)  # a hole: no byte is written
    with pytest.raises(ArtifactError, match=f"larger than {artifact_store.MOST_FILE_BYTES} bytes"):
        store.load(CONFIG)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write(stored: tuple[ArtifactStore, Path], compiled: list[object], mode: int) -> None:
    store, path = stored
    path.chmod(mode)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ArtifactError, match=rf"may be written by others \(mode {mode:o}\): must not be, for it holds code \(chmod go-w\)"):
        store.load(CONFIG)
    assert len(os.listdir("/proc/self/fd")) == opened
    store.get(CONFIG)
    assert compiled == [CONFIG] and path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write(stored: tuple[ArtifactStore, Path], compiled: list[object], mode: int) -> None:
    """Nothing is taken from it or put into it: one warning says why."""
    store, path = stored
    before = path.read_bytes()
    store.folder.chmod(mode)
    with pytest.raises(ArtifactError, match=rf"kernels: may be written by others \(mode {mode:o}\)"):
        store.load(CONFIG)
    with pytest.warns(ArtifactWarning, match="cannot be stored in .*may be written by others") as warned:
        store.get(CONFIG)
        store.get(CONFIG)
    assert len(warned) == 1 and compiled == [CONFIG, CONFIG]
    assert list(store.folder.iterdir()) == [path] and path.read_bytes() == before


def test_another_users_file_or_folder(stored: tuple[ArtifactStore, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by who the user is, for a test cannot give files away."""
    store, path = stored
    owner = path.stat().st_uid
    monkeypatch.setattr(artifact_store, "ROOT", owner + 1)
    monkeypatch.setattr(artifact_store.os, "geteuid", lambda: owner + 2)
    with pytest.raises(ArtifactError, match=rf"kernels: belongs to user {owner}: must belong to the user {owner + 2} or to root"):
        store.load(CONFIG)
    monkeypatch.setattr(artifact_store, "require_own_folder", lambda folder: None)
    with pytest.raises(ArtifactError, match=rf"megamoe\.zip: belongs to user {owner}"):
        store.load(CONFIG)
    monkeypatch.setattr(artifact_store, "ROOT", owner)
    assert store.load(CONFIG).cubin == ARTIFACT.cubin, "root's files are taken"


def test_what_is_stored_is_the_users_whatever_the_umask_is(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "a" / "b")
    before = os.umask(0o002)
    try:
        path = store.save(ARTIFACT)
    finally:
        os.umask(before)
    assert [place.stat().st_mode & 0o777 for place in (store.folder, path)] == [0o755, 0o644]
    assert store.load(CONFIG).ptx == ARTIFACT.ptx


@pytest.mark.parametrize("what", [kernel_name(CONFIG), "the kernels of an engine's layers"])
def test_a_process_that_waits_says_so(
    what: str, tmp_path: Path, compiled: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, after `SAY_AFTER`, of a kernel and of an engine's; the other process is through when it has been said."""
    store, engine = ArtifactStore(tmp_path), what != kernel_name(CONFIG)
    other, prepared = FileLock(tmp_path / ("engine-kernels.lock" if engine else f"{what}.lock")), list[object]()

    class Released(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            store.save(ARTIFACT)
            other.release()

    handler = Released()
    monkeypatch.setattr(artifact_store, "SAY_AFTER", 0.0)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(MegaMoE, "prepare", lambda problem, **others: prepared.append(problem))
    prepared_bounds.cache_clear()
    logging.getLogger("megamoe_dsl").addHandler(handler)
    try:
        other.acquire()
        if engine:
            assert prepared_bounds(CONFIG.problem, Target.typical("sm_100a"))[-1] == 64 and prepared == [CONFIG.problem]
        else:
            assert store.get(CONFIG).cubin == ARTIFACT.cubin
    finally:
        logging.getLogger("megamoe_dsl").removeHandler(handler)
        other.release()
        prepared_bounds.cache_clear()
    (said,) = caplog.messages
    assert said.startswith(f"waiting for another process that compiles {what}") and str(tmp_path) in said and "\n" not in said
    assert caplog.records[0].levelno == logging.WARNING and compiled == []


def test_a_process_that_has_waited_compiles_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the other process stored nothing: the lock is held while this one compiles."""
    path, free = tmp_path / f"{kernel_name(CONFIG)}.lock", []
    other = FileLock(path)

    class Released(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            other.release()

    def compile_kernel(config: Sm100Config) -> Artifact:
        try:
            FileLock(path).acquire(timeout=0)
        except Timeout:
            free.append(False)
        else:
            free.append(True)
        return replace(ARTIFACT, config=config)

    handler = Released()
    monkeypatch.setattr(artifact_store, "SAY_AFTER", 0.0)
    monkeypatch.setattr(artifact_store, "compile_kernel", compile_kernel)
    logging.getLogger("megamoe_dsl").addHandler(handler)
    try:
        other.acquire()
        ArtifactStore(tmp_path).get(CONFIG)
    finally:
        logging.getLogger("megamoe_dsl").removeHandler(handler)
        other.release()
    assert free == [False]


def test_who_does_not_wait_says_nothing(tmp_path: Path, compiled: list[object], caplog: pytest.LogCaptureFixture) -> None:
    assert artifact_store.SAY_AFTER == 5.0
    ArtifactStore(tmp_path).get(CONFIG)
    assert compiled == [CONFIG] and caplog.messages == []
