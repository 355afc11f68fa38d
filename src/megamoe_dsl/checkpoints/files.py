"""Tensors of safetensors files, memory-mapped: a folder with an index, a folder of files, or one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


class CheckpointError(ValueError):
    """Says which file and which tensor, and what is wrong with it.

    file, tensor   where known; they begin the message
    expert         local expert that was being loaded: those before it are in place, and `load_experts(..., start=expert)` goes on
    """

    def __init__(self, what: str, *, file: Path | None = None, tensor: str | None = None) -> None:
        super().__init__(": ".join(str(one) for one in (file, tensor, what) if one is not None))
        self.what, self.file, self.tensor = what, file, tensor
        self.expert: int | None = None


INDEX = "*.safetensors.index.json"


def safetensors_library() -> ModuleType:
    """The library, with its `torch` module.  Raises `CheckpointError` that says how to install it."""
    try:
        import safetensors
        import safetensors.torch
    except ModuleNotFoundError:
        raise CheckpointError("checkpoints are files of safetensors: pip install 'megamoe_dsl[checkpoints]'") from None
    return safetensors


class Checkpoint:
    """Names of tensors, and the tensors when asked for.  No file is opened before one of its tensors is; with an index, files of other
    tensors may be missing.

    path  a folder or a file

    Raises `CheckpointError` that names the file: when nothing is there, an index is unreadable, or a file without an index is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._open: dict[Path, Any] = {}
        library = safetensors_library()
        self._safe_open, self._error = library.safe_open, library.SafetensorError
        if not self.path.exists():
            raise CheckpointError("no such file or folder", file=self.path)

    @cached_property
    def files(self) -> Mapping[str, Path]:
        if self.path.is_file():
            return dict.fromkeys(self._file(self.path).keys(), self.path)
        indexes = sorted(self.path.glob(INDEX))
        if indexes:
            return _read_index(indexes[0])
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise CheckpointError("a folder without *.safetensors", file=self.path)
        return {name: file for file in files for name in self._file(file).keys()}  # noqa: SIM118 (no dictionary)

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype, as safetensors names it, and shape of a tensor.  Reads a header.  Raises `CheckpointError` that names tensor and file."""
        found = self._slice(name)
        return found.get_dtype(), tuple(found.get_shape())

    def read(self, name: str, row: int | None = None) -> torch.Tensor:
        """A tensor, or one row of its first dimension, from the mapped file.  Errors as `describe`."""
        try:
            if row is None:
                whole: torch.Tensor = self._file(self._file_of(name)).get_tensor(name)
                return whole
            part: torch.Tensor = self._slice(name)[row : row + 1]
            return part[0]
        except (self._error, OSError) as error:
            raise CheckpointError(f"cannot be read ({error})", file=self.files[name], tensor=name) from None

    def close(self) -> None:
        """Closes every file; the next question opens them again."""
        self._open.clear()

    def _file_of(self, name: str) -> Path:
        file = self.files.get(name)
        if file is None:
            raise CheckpointError("no such tensor", file=self.path, tensor=name)
        return file

    def _slice(self, name: str) -> Any:
        file = self._file_of(name)
        handle = self._file(file, name)
        try:
            return handle.get_slice(name)
        except self._error:
            raise CheckpointError("not in this file, though the index says so", file=file, tensor=name) from None

    def _file(self, file: Path, tensor: str | None = None) -> Any:
        if file not in self._open:
            if not file.exists():
                raise CheckpointError("no such file, though the index names it", file=file, tensor=tensor)
            try:
                self._open[file] = self._safe_open(str(file), framework="pt", device="cpu")
            except (self._error, OSError) as error:
                raise CheckpointError(f"truncated, or no safetensors file ({error})", file=file, tensor=tensor) from None
        return self._open[file]


def _read_index(index: Path) -> dict[str, Path]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): index.parent / str(file) for name, file in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"no index of safetensors files: it has no readable weight_map ({error!r})", file=index) from None
