"""Tensors of safetensors files, memory-mapped: a folder with an index, a folder of files, or one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import torch

from ..json_file import FileError, open_regular, printable, read_json_object


class CheckpointError(ValueError):
    """A checkpoint cannot be read; the message names the file, the tensor and the fault.

    file, tensor   where known; they begin the message
    expert         local expert that was being loaded: those before it are in place, and `load_experts(..., start=expert)` goes on
    """

    def __init__(self, what: str, *, file: Path | None = None, tensor: str | None = None) -> None:
        super().__init__(": ".join(printable(str(one)) for one in (file, tensor, what) if one is not None))
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
    """Tensors by name, read on demand.  A file is opened when one of its tensors is read; with an index, other files may be missing.

    path  a folder or a file

    Raises `CheckpointError`, which names the file, for a missing path, an unreadable index, or a damaged file without an index.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._open: dict[Path, Any] = {}
        library = safetensors_library()
        self._safe_open, self._error = library.safe_open, library.SafetensorError
        try:
            self.path.stat()
        except FileNotFoundError:
            raise CheckpointError("no such file or folder", file=self.path) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(getattr(error, "strerror", None) or str(error), file=self.path) from None

    @cached_property
    def files(self) -> Mapping[str, Path]:
        if not self.path.is_dir():
            return dict.fromkeys(self._file(self.path).keys(), self.path)
        indexes = sorted(self.path.glob(INDEX))
        if indexes:
            return {name: self.path / file for name, file in read_index(indexes[0])[0].items()}
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
        """Closes every file; the next read opens its file again."""
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
            self._require_regular(file, tensor)
            try:
                self._open[file] = self._safe_open(str(file), framework="pt", device="cpu")
            except (self._error, OSError) as error:
                raise CheckpointError(f"truncated, or no safetensors file ({error})", file=file, tensor=tensor) from None
        return self._open[file]

    def _require_regular(self, file: Path, tensor: str | None) -> None:
        """A file of a folder may be a link to another one there; a file that the caller named may be a link to any."""
        if self.path.is_dir():
            require_within(self.path, file, tensor)
        try:
            os.close(open_regular(file))
        except FileError as error:
            why = error.why if os.path.lexists(file) else "no such file, though the index names it"
            raise CheckpointError(why, file=file, tensor=tensor) from None


def require_within(folder: Path, file: Path, tensor: str | None = None) -> None:
    """Raises `CheckpointError` for a link out of the folder, but for those of a Hugging Face cache: from snapshots/REVISION to blobs."""
    place, home = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    homes = [home, home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(place.is_relative_to(one) for one in homes):
        raise CheckpointError(f"a link to {place}: must stay in the checkpoint's folder", file=file, tensor=tensor)


def read_index(index: Path) -> tuple[dict[str, str], str]:
    """File of each tensor, relative to the index's folder, and the recipe that `megamoe weights convert` recorded, else empty.  Raises
    `CheckpointError` for a file that is no index, and for files outside of the folder."""
    require_within(index.parent, index)
    try:
        read = read_json_object(index)
    except FileError as error:
        raise CheckpointError(f"no index of safetensors files: {error.why}", file=index) from None
    found, metadata = read.get("weight_map"), read.get("metadata")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise CheckpointError("no index of safetensors files: it has no weight_map of names to files", file=index)
    for name, file in found.items():
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or not file.isprintable():
            raise CheckpointError(f"file {file!r}: must lie in the index's folder", file=index, tensor=name)
    return found, str(metadata.get("recipe", "")) if isinstance(metadata, dict) else ""
