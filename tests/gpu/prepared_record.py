"""What the simulator made of a case, where the DSL is, kept in a file for a GPU to be compared with."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

from portable import dump


def write_record(path: Path, sources: Any, record: dict[str, Any]) -> None:
    """`sources` say what the case's kernels are made of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(dump({**record, "sources": sources}), 6))


def read_record(path: Path, sources: Any) -> dict[str, Any]:
    """What was written.  Raises LookupError where a case was not prepared, or from other sources."""
    name = path.name.partition(".")[0]
    if not path.exists():
        raise LookupError(f"{path.parent} has no case {name}: run prepare.py where the DSL is")
    record: dict[str, Any] = pickle.loads(gzip.decompress(path.read_bytes()))
    if record["sources"] != sources:
        raise LookupError(f"{path.parent}: {name} was prepared from other sources: run prepare.py again")
    return record
