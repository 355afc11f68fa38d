"""Records of a script as JSON: with its command, the versions that the figures depend on, and the date."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.session import finite, heading


def save(folder: Path, kind: str, records: list[dict[str, Any]]) -> Path:
    """Writes FOLDER/KIND-date-time.json; returns its path.  The command is without the folders of absolute paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps({**heading(), "records": finite(records)}, indent=1) + "\n")
    return path
