"""Reads regular files and JSON up to a size limit, replaces files atomically, and finds the user's cache folder.

Reading never blocks on a pipe, reads a device or exhausts memory; every failure is a `FileError`, a line that begins with the path.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""Of a file of JSON: ten times the index of a model with 100,000 tensors."""

MOST_SHOWN = 4096  # characters of a path or name in a message: Linux takes no longer path

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def printable(text: Path | str) -> str:
    """Untrusted text for one line of a message: unprintable characters become question marks, long text is cut."""
    shown = "".join(one if one.isprintable() else "?" for one in str(text))
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:256]}..."


class FileError(ValueError):
    """A file is missing, unreadable, not a regular one, too large, or not JSON; the message begins with its path.

    why   the message without the path
    """

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{printable(path)}: {why}")
        self.why = why


def open_regular(path: Path | str) -> int:
    """Opens a regular file, or a link to one, for reading, without blocking; returns the descriptor.  Raises `FileError`."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise FileError(path, getattr(error, "strerror", None) or str(error)) from None
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        raise FileError(path, f"{KINDS.get(kind, 'no file')}: must be a regular file")
    return handle


def read_all(handle: int, path: Path | str, most: int) -> bytes:
    """Reads and closes an open file; `path` is for the message.  Raises `FileError` for more than `most` bytes."""
    try:
        with os.fdopen(handle, "rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise FileError(path, error.strerror or str(error)) from None
    if len(found) > most:
        raise FileError(path, f"larger than {most} bytes, the most that is read")
    return found


def parse_json(text: bytes, path: Path | str) -> Any:
    """The JSON value of a file's bytes, with NaN and Infinity as Python writes them.  Raises `FileError`."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise FileError(path, f"no JSON that can be read: {why}") from None


def read_json(path: Path | str) -> Any:
    """The JSON value in a regular file of at most `MOST_BYTES`.  Raises `FileError`."""
    return parse_json(read_all(open_regular(path), path, MOST_BYTES), path)


def read_json_object(path: Path | str) -> dict[str, Any]:
    """As `read_json`, for a file whose value is an object.  Raises `FileError`."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise FileError(path, "no JSON object")
    return found


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yields a temporary file beside `path`, which replaces it at the end of the block and is removed after an error.  The default `mode`
    is that of the replaced file, or 0o644.  Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(mode or (path.stat().st_mode & 0o777 if path.exists() else 0o644))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


FOLDER_VARIABLE = "MEGAMOE_CACHE_DIR"


def cache_folder() -> Path:
    """`MEGAMOE_CACHE_DIR`, or the platform's cache directory of this user (~/.cache/megamoe_dsl on Linux).  It need not exist."""
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given).expanduser()
    try:
        from platformdirs import user_cache_path
    except ImportError:  # a machine that only runs kernels may have torch and nothing else
        return Path.home() / ".cache" / "megamoe_dsl"
    return user_cache_path("megamoe_dsl", appauthor=False)


def tables_folder() -> Path:
    """Folder of the tables that `megamoe tune` writes, which override the package's.  It need not exist."""
    return cache_folder() / "tuned"
