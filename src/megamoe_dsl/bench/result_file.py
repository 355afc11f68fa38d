"""A results file: records as JSON with the command, the versions that the figures depend on, and the date."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ..artifact.store import source_digest
from ..kernels.registry import find_kernel
from ..predict.roofline import measured_gpu
from ..tuned import DEFAULT_GPU

FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^\s/"']+/)*(?=[^\s/])""")


def result_path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"


def write(path: Path, head: dict[str, Any], records: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps({**head, "records": finite(records)}, indent=1) + "\n")


def finite(value: Any) -> Any:
    """JSON values without NaN and infinities, which JSON has no words for: strings instead."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def without_folders(text: str) -> str:
    """The text with the last name alone of every absolute path in it: where things lie on a machine is nobody else's business."""
    return FOLDERS.sub("", text)


def command_line() -> list[str]:
    """This process's command, without the folders of absolute paths."""
    return [Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])]


def heading(*sites: Path | str | None) -> dict[str, Any]:
    """What every results file begins with: when, with which command, and on what."""
    return {"date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "command": command_line(), **versions(*sites)}


def versions(*sites: Path | str | None) -> dict[str, Any]:
    """What the figures depend on; `sites` are folders of others' packages, or None.  Kernels say themselves which DSL made them."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "gpus": torch.cuda.device_count(),
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "sources": source_digest(find_kernel("mega_moe")),
        "ceilings": measured_gpu(torch.cuda.get_device_name() if torch.cuda.is_available() else DEFAULT_GPU),
        "baseline": packages(*sites),
    }


def packages(*folders: Path | str | None) -> dict[str, str]:
    """Names and versions of the packages that are unpacked in folders; None has none."""
    found = distributions(path=[str(folder) for folder in folders if folder is not None])
    return {one.metadata["Name"]: one.version for one in found}
