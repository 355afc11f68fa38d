"""What is no regular file of JSON of a bounded size is one line that names it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from megamoe_dsl.json_file import (
    FileError,
    cache_folder,
    open_regular,
    printable,
    read_all,
    read_json,
    read_json_object,
    replacing,
    tables_folder,
)


def refused(path: Path | str, read: Callable[[Path | str], object] = read_json) -> str:
    """The error's message after the path."""
    with pytest.raises(FileError) as caught:
        read(path)
    assert str(caught.value) == f"{path}: {caught.value.why}" or "?" in str(caught.value) or "..." in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value.why


def test_a_regular_file_is_read_and_so_is_a_link_to_one(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    path.write_text('{"ä": [1, 2.5, null]}', encoding="utf-8")
    link.symlink_to(path)
    assert read_json(path) == read_json(str(link)) == read_json_object(link) == {"ä": [1, 2.5, None]}


def test_what_would_hang_or_fill_memory_is_refused_at_once(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    opened = len(os.listdir("/proc/self/fd"))
    assert refused(pipe) == "a named pipe: must be a regular file"
    assert refused("/dev/zero") == "a device: must be a regular file"
    assert refused(tmp_path) == "a folder: must be a regular file"
    assert refused(tmp_path / "gone") == "No such file or directory"
    assert "symbolic links" in refused(loop)
    assert "too long" in refused(tmp_path / ("a" * 5000))
    assert "null" in refused("a\0b")
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_file_of_one_byte_too_many(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"[1]")
    assert read_all(open_regular(path), path, 3) == b"[1]"
    assert refused(path, lambda one: read_all(open_regular(one), one, 2)) == "larger than 2 bytes, the most that is read"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\xff\xfe\xfa", "decode"),
        (b"9" * 5000, "digits"),
    ],
)
def test_what_is_no_json(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    assert refused(path).startswith("no JSON that can be read: ") and why in refused(path)


def test_tables_of_a_user_lie_in_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, folder in (("/kernels", Path("/kernels")), ("~/kernels", Path.home() / "kernels")):
        monkeypatch.setenv("MEGAMOE_CACHE_DIR", given)
        assert (cache_folder(), tables_folder()) == (folder, folder / "tuned")


@pytest.mark.parametrize("given", [None, ""])
def test_a_cache_needs_no_package(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a variable; an empty one names no folder."""
    monkeypatch.delenv("MEGAMOE_CACHE_DIR", raising=False) if given is None else monkeypatch.setenv("MEGAMOE_CACHE_DIR", given)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cache_folder() == Path.home() / ".cache" / "megamoe_dsl"


def test_a_file_of_the_longest_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with replacing(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [(None, None, 0o644), (0o600, None, 0o600), (0o664, None, 0o664), (None, 0o755, 0o755), (0o600, 0o640, 0o640)],
)
def test_a_file_has_the_mode_of_the_one_it_replaces(before: int | None, given: int | None, after: int, tmp_path: Path) -> None:
    """Or what is asked for; while it is written it is the user's alone, beside the other."""
    path, handles = tmp_path / "a.json", len(os.listdir("/proc/self/fd"))
    if before is not None:
        path.touch(before)
        path.chmod(before)
    with replacing(path, *([] if given is None else [given])) as partial:
        assert partial.parent == tmp_path and partial.name.startswith(".a.json.") and partial.stat().st_mode & 0o777 == 0o600
        partial.write_text("{}")
    assert path.stat().st_mode & 0o777 == after and path.read_text() == "{}"
    assert len(os.listdir("/proc/self/fd")) == handles


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11])
def test_a_file_of_just_as_many_bytes_is_read(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * size)
    if size <= 10:
        assert read_all(open_regular(path), path, 10) == b"x" * size
    else:
        assert refused(path, lambda one: read_all(open_regular(one), one, 10)) == "larger than 10 bytes, the most that is read"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_is_not_written_to_the_end_replaces_nothing(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")

    def fail(handle: int, mode: str) -> None:
        os.close(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdopen", fail)
    assert refused(path) == "Input/output error"


def test_an_object_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1]")
    assert refused(path, read_json_object) == "no JSON object"


def test_a_name_with_a_line_break_stays_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "a\nb") == "No such file or directory"
    assert [printable("\t" * count) for count in (4096, 4097)] == ["?" * 4096, "?" * 256 + "..."]
