"""A recorded launch as a file: JSON, and memory as arrays of bytes.  Reading it runs no code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

HEAD = "head"


def write_recording(path: Path, recording: dict[str, Any]) -> None:
    """What `simulator_speed.recording` returns, in numpy's npz format."""
    launches = [{**one, "args": [described(argument) for argument in one["args"]]} for one in recording["launches"]]
    memory = recording["memory"]
    head = {**recording, "launches": launches, "memory": [buffer[:-1] for buffer in memory]}
    arrays = {f"memory_{i}": np.frombuffer(data, np.uint8) for i, (*_, data) in enumerate(memory)}
    with path.open("wb") as file:
        np.savez(file, **{HEAD: np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays})


def read_recording(path: Path) -> dict[str, Any]:
    """Inverse of `write_recording`.  Raises ValueError for another file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            recording: dict[str, Any] = json.loads(arrays[HEAD].tobytes())
            memory = [(*buffer, arrays[f"memory_{i}"].tobytes()) for i, buffer in enumerate(recording["memory"])]
        launches = [launch_of(one) for one in recording["launches"]]
    except (LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, RecursionError) as error:
        raise ValueError(f"{path}: no recording of a launch ({type(error).__name__}: {error})") from None
    return {**recording, "memory": memory, "launches": launches}


def launch_of(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of a launch, which has tuples where JSON has lists."""
    fields = {**values, "args": [argument_of(one) for one in values["args"]]}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def described(argument: int | bytes) -> int | str:
    """An argument of a launch as JSON: an aggregate in hexadecimal."""
    return argument.hex() if isinstance(argument, bytes) else int(argument)


def argument_of(value: int | str) -> int | bytes:
    """Inverse of `described`."""
    return bytes.fromhex(value) if isinstance(value, str) else value
