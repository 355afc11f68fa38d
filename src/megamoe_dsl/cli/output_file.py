"""Files that a command writes: known to be writable before anything expensive, and whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..problem import ProblemError


def require_writable_file(option: str, path: Path | None) -> None:
    """Raises `ProblemError` where `write_whole` would fail for want of a folder or a permission; makes nothing.  None is fine."""
    if path is None:
        return
    place = path.resolve()
    if place.is_dir():
        raise ProblemError(option, str(path), "a file, not a folder")
    if not place.parent.is_dir():
        raise ProblemError(option, str(path), f"in a folder that is there: {path.parent} is none")
    writable = (place.parent, *([place] if place.exists() else []))
    if not all(os.access(one, os.W_OK) for one in (writable if is_regular(place) else [place])):
        raise ProblemError(option, str(path), "a file that can be written")


def is_regular(place: Path) -> bool:
    """Whether a new file can take this place by rename: /dev/stdout and pipes are written as they are."""
    return place.is_file() or not place.exists()


def write_whole(path: Path, text: str) -> None:
    """Writes a UTF-8 file that appears whole, by rename; what was there stays until then.  Raises OSError that names `path`."""
    place = path.resolve()
    if not is_regular(place):
        place.write_text(text, encoding="utf-8")
        return
    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".partial")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(partial, place.stat().st_mode & 0o777 if place.exists() else 0o644)
        os.replace(partial, place)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
