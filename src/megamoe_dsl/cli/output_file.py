"""Output files of commands: checked before any expensive work, written atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from ..json_file import replacing
from ..problem import ProblemError


def require_writable_files(given: Mapping[str, Path | None]) -> None:
    """Raises `ProblemError` for a path where `write_whole` would fail or block, and for two options with one file."""
    seen: dict[Path, str] = {}
    for option, path in given.items():
        if path is not None:
            require_writable_file(option, path)
            other = seen.setdefault(path.resolve(), option)
            if other != option and is_regular(path.resolve()):
                raise ProblemError(option, str(path), f"another file than {other}")


def require_writable_file(option: str, path: Path) -> None:
    """The same for one path."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        kind = 0
    except (OSError, ValueError) as error:  # a circle of links, a name that is too long or has a null byte
        raise ProblemError(option, str(path), f"a path of a file ({getattr(error, 'strerror', None) or error})") from None
    place = path.resolve()
    if kind == stat.S_IFDIR:
        raise ProblemError(option, str(path), "a file, not a folder")
    if not place.parent.is_dir():
        raise ProblemError(option, str(path), f"in a folder that is there: {path.parent} is none")
    writable = (place.parent, *([place] if place.exists() else []))
    if not all(os.access(one, os.W_OK) for one in (writable if is_regular(place) else [place])):
        raise ProblemError(option, str(path), "a file that can be written")
    if kind == stat.S_IFIFO:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # to open a pipe that nobody reads would wait for somebody
            raise ProblemError(option, str(path), "a file, or a pipe that somebody reads") from None


def is_regular(place: Path) -> bool:
    """Whether a new file may replace it by rename; devices and pipes are written in place."""
    return place.is_file() or not place.exists()


def write_whole(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically: an old file stays until the new one is complete.  Raises OSError that names `path`."""
    place = path.resolve()
    try:
        with replacing(place) if is_regular(place) else nullcontext(place) as target:
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
