"""PTX for readers: where each piece comes from, in words."""

from __future__ import annotations

import re
from pathlib import Path

from ..sass.source import function_at

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOCATION = re.compile(r"^(\s*)\.loc\s+(\d+)\s+(\d+)\b.*\n", re.MULTILINE)


def annotate(ptx: str) -> str:
    """The PTX with a comment before every `.loc`, as in `// load.py:78 load_tokens`; without the function where the file is not there.

    Nothing else changes: it compiles to the same code.
    """
    files = dict(_FILE.findall(ptx))

    def named(location: re.Match[str]) -> str:
        indent, number, line = location.groups()
        path = files.get(number)
        if path is None:
            return location[0]
        function = function_at(path, int(line))
        return f"{indent}// {Path(path).name}:{line}{f' {function}' if function else ''}\n{location[0]}"

    return _LOCATION.sub(named, ptx)
