"""What tells one compiled kernel from another: every field of its configuration, and every source that it comes from."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact.artifact import Artifact, CompileError
from megamoe_dsl.artifact.store import SOURCES, ArtifactError, ArtifactStore, describe_config, kernel_name, read_config, source_digest
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.problem import Problem

CONFIG = choose(Problem(256, 128, 4, 2, 2, 64), Target.typical("sm_100a", 2), 16)
OTHER = CONFIG.replace(num_sms=4)
SM90 = choose(Problem(256, 128, 4, 2, 2, 64, recipe="fp8xfp8"), Target.typical("sm_90a", 2), 16)
ARTIFACT = Artifact(CONFIG, ".entry kernel(", b"\x7fELF" + bytes(100), 1.5)


@pytest.mark.parametrize("config", [CONFIG, SM90], ids=lambda config: config.arch.name)
def test_no_two_configurations_share_a_file(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description has every field, and the name changes with each."""
    described, name = describe_config(config), kernel_name(config)
    assert described.keys() == {"kernel", "kind", *(one.name for one in fields(config))}
    for field in described:
        with monkeypatch.context() as patch:
            patch.setattr(artifact_store, "describe_config", lambda _, field=field: {**described, field: "another"})
            assert kernel_name(config) != name, field


def test_any_change_of_a_kernels_sources_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their contents, their names and their number, here and in a family elsewhere."""
    package, family = tmp_path / "package", tmp_path / "family"
    files = [package / name / "a.py" if "." not in name else package / name for name in SOURCES] + [family / "kernel.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1")
    monkeypatch.setattr(artifact_store, "PACKAGE", package)

    def digest() -> str:
        found: str = source_digest.__wrapped__(SimpleNamespace(sources=(family,)))  # type: ignore[arg-type]
        return found

    seen = {digest()}
    assert re.fullmatch("[0-9a-f]{8}", digest())
    for file in files:
        file.write_text("x = 2")
        seen.add(digest())
    files[0].rename(files[0].with_name("b.py"))
    seen.add(digest())
    (family / "more.py").write_text("")
    seen.add(digest())
    assert len(seen) == len(files) + 3 and digest() in seen


def test_an_unknown_configuration_or_field_is_named() -> None:
    values = describe_config(CONFIG)
    with pytest.raises(ArtifactError, match="configuration field 'color' is unknown"):
        read_config({**values, "color": 1})
    with pytest.raises(LookupError, match="configuration 'Sm1Config' of kernel 'mega_moe': must be one of"):
        read_config({**values, "kind": "Sm1Config"})


def test_configurations_of_a_class_and_a_problem(tmp_path: Path) -> None:
    """Each once, whichever sources made its files."""
    store = ArtifactStore(tmp_path)
    bigger = CONFIG.replace(problem=replace(CONFIG.problem, max_tokens_per_rank=128))
    for config in (CONFIG, OTHER, bigger, SM90):
        path = store.save(replace(ARTIFACT, config=config))
    older = store.path(OTHER)
    older.with_name(f"{kernel_name(OTHER)}-00000000{artifact_store.SUFFIX}").write_bytes(older.read_bytes())
    for path in store.folder.iterdir():
        path.chmod(0o644)
    found = list(store.configs(Sm100Config))
    assert len(found) == 3 and set(found) == {CONFIG, OTHER, bigger}
    assert set(store.configs(Sm100Config, CONFIG.problem)) == {CONFIG, OTHER}
    assert list(store.configs(Sm90Config, CONFIG.problem)) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(artifact_store.os, "replace", full)
        store.save(ARTIFACT)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_free_after_a_kernel_and_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArtifactStore(tmp_path)
    asked: list[float] = []

    class Lock:
        """Stands in for a file lock."""

        def __init__(self, path: Path) -> None:
            self.lock_file = str(path)

        def acquire(self, timeout: float = -1) -> None:
            asked.append(timeout)

        def release(self) -> None:
            asked.append(0.0)

    def compile_kernel(config: Any) -> Artifact:
        if config == OTHER:
            raise CompileError("no such instruction")
        return replace(ARTIFACT, config=config)

    monkeypatch.setattr("filelock.FileLock", Lock)
    monkeypatch.setattr(artifact_store, "compile_kernel", compile_kernel)
    store.get(CONFIG)
    with pytest.raises(CompileError):
        store.get(OTHER)
    assert asked == [artifact_store.SAY_AFTER, 0.0] * 2
