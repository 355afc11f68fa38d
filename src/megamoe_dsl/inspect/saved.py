"""An inspection in a file of JSON, to be compared with a later one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..json_file import FileError, read_json_object

SECTIONS = ("problem", "config", "resources", "roles", "smem", "tmem", "barriers", "measures")
"""What `Inspection.as_dict` has by name, one value or several for each."""


def read_inspection(path: Path) -> dict[str, Any]:
    """A file that `megamoe inspect --json` wrote.  Raises `FileError` for another one."""
    found = read_json_object(path)
    for section in SECTIONS:
        if not isinstance(found.get(section), Mapping):
            raise FileError(path, f"not a file that `megamoe inspect --json` wrote: {section} must be an object")
        for name, value in found[section].items():
            of_values = all(map(is_value, value.values())) if isinstance(value, Mapping) else is_value(value)
            if not of_values:
                raise FileError(path, f"not a file that `megamoe inspect --json` wrote: {section}.{name} must hold numbers, texts or lists")
    return found


def is_value(value: Any) -> bool:
    """Whether it is what the inspection has at most: a number or text, or several by name or in a list."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else is_plain(value)


def is_plain(value: Any) -> bool:
    """Whether it is a number, a text, true, false or null."""
    return value is None or isinstance(value, str | int | float)
