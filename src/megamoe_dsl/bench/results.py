"""What a timed run found: the contents of one file of bench/results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ResultsError(ValueError):
    """A file is not one that a run wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"results = {str(path)!r}: must be a JSON file that `megamoe bench` wrote")


@dataclass(frozen=True)
class Results:
    """Records of the points of a run; `name` is the file's, `gpu` torch's name of the GPUs."""

    name: str
    gpu: str
    records: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises `ResultsError`."""
        try:
            found = json.loads(path.read_text())
            return cls(path.name, found["gpu"], tuple(found["records"]))
        except (OSError, ValueError, LookupError, TypeError):
            raise ResultsError(path) from None
