"""An inspection in a file of JSON, to be compared with a later one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..json_file import FileError, read_json

SECTIONS = ("problem", "config", "resources", "roles", "smem", "tmem", "barriers", "measures")
"""What `Inspection.as_dict` has by name, one value or several for each."""

OTHER = "not a file that `megamoe inspect --json` wrote"


def read_inspection(path: Path) -> dict[str, Any]:
    """A file that `megamoe inspect --json` wrote.  Raises `FileError` for another one."""
    found = read_json(path)
    sections = {name: found.get(name) if isinstance(found, Mapping) else None for name in SECTIONS}
    for section, values in sections.items():
        if not isinstance(values, Mapping):
            raise FileError(path, f"{OTHER}: {section} must be an object")
        for name, value in values.items():
            of_values = all(map(is_value, value.values())) if isinstance(value, Mapping) else is_value(value)
            if not of_values:
                raise FileError(path, f"{OTHER}: {section}.{name} must hold numbers, texts or lists of them")
    return dict(found)


def is_value(value: Any) -> bool:
    """Whether it is what the inspection has at most: a number or text, or several by name or in a list."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list) else is_plain(value)


def is_plain(value: Any) -> bool:
    """Whether it is a number, a text, true, false or null."""
    return value is None or isinstance(value, str | int | float)
