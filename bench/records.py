"""Records of a script as a results file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.results import Recorded, heading, result_path, write


def save(folder: Path, kind: str, records: list[dict[str, Any]], *sites: Path | str | None) -> Path:
    """Writes FOLDER/KIND-date-time.json; returns its path.  The command is without the folders of absolute paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = result_path(folder, kind)
    write(path, heading(*sites), records)
    return path


def save_each(
    folder: Path, kind: str, records: Iterable[dict[str, Any]], say: Callable[[dict[str, Any]], str], *sites: Path | str | None
) -> list[dict[str, Any]]:
    """Writes the file anew with every record, so that what ends a run early leaves those before, and prints what `say` says of it; returns
    all."""
    found = Recorded(folder, kind, *sites)
    for record in records:
        print(say(found.add(record)), flush=True)
    return found.records
