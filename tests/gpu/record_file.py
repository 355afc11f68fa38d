"""Records of a test module's cases in one results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megamoe_dsl.bench.results import heading, result_path, write


class RecordFile:
    """Written anew with every record, so that what ends a run early leaves those before; nowhere without a folder."""

    def __init__(self, folder: Path | None, kind: str) -> None:
        self.records: list[dict[str, Any]] = []
        self.path = None if folder is None else result_path(folder, kind)
        self.head = heading()

    def append(self, record: dict[str, Any]) -> None:
        """One more record."""
        self.records.append(record)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write(self.path, self.head, self.records)
