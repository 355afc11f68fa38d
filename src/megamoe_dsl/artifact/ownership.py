"""Files that are taken as code: only those that nobody but the user and root could have written.

A compiled kernel runs with all rights of its process.  Somebody who can write into the cache could put any code there, so a folder or file
of another user, or one that its group or others may write, counts as missing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..json_file import FileError, open_regular, read_all

ROOT = 0


def require_own(path: Path, found: os.stat_result) -> None:
    """Raises `FileError` unless the file or folder is the user's or root's, and no one else may write it."""
    if found.st_uid not in (ROOT, os.geteuid()):
        raise FileError(path, f"belongs to user {found.st_uid}: must belong to the user {os.geteuid()} or to root, for it holds code")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise FileError(path, f"may be written by others (mode {mode:o}): must not be, for it holds code (chmod go-w)")


def require_own_folder(folder: Path) -> None:
    """Raises `FileError` as `require_own`, and for a folder that is not there."""
    try:
        found = folder.stat()
    except (OSError, ValueError) as error:
        raise FileError(folder, getattr(error, "strerror", None) or str(error)) from None
    require_own(folder, found)


def read_own(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most so many, which like its folder is the user's or root's.  Raises `FileError`."""
    require_own_folder(path.parent)
    handle = open_regular(path)
    try:
        require_own(path, os.fstat(handle))
    except FileError:
        os.close(handle)
        raise
    return read_all(handle, path, most)


def make_own_folder(folder: Path) -> None:
    """Makes a folder that others cannot write, whatever the umask is.  Raises OSError."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
