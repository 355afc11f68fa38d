"""A kernel that `megamoe export` wrote, called through TVM FFI: neither the DSL nor torch is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..artifact.export import sha256
from ..artifact.store import ArtifactError, read_config, source_digest
from ..json_file import FileError, open_regular, read_json_object
from ..kernels.kernel import KernelConfig
from ..kernels.registry import kernel_of


class ExportedKernel:
    """Loads the library that a manifest names; a GPU loads the cubin at its first launch.

    Raises `ArtifactError` for a manifest that is damaged or, unless `any_sources`, made by other sources, and for a library or runtime that
    is missing, cannot be loaded, or differs from the exported one in size or SHA-256, compared before it is mapped.

        kernel = ExportedKernel("build/flash.json")  # of megamoe export build --name flash
        kernel(buffers.arguments(peers, y, num_tokens, rank, watchdog_ns), torch.cuda.current_stream().cuda_stream)
    """

    def __init__(self, manifest: Path | str, *, any_sources: bool = False) -> None:
        import tvm_ffi

        path = Path(manifest)
        try:
            self.manifest: dict[str, Any] = read_json_object(path)
            library, function = path.parent / self.manifest["library"], str(self.manifest["function"])
            self.argument_names: list[str] = [one["name"] for one in self.manifest["arguments"]]
            """In the order of a launch."""
            self.config: KernelConfig = read_config(self.manifest["config"])
            if not any_sources and self.manifest["sources"] != source_digest(kernel_of(self.config)):
                raise ArtifactError(f"{path}: exported from other sources; export it again")
            files = [(library.parent / name, one["bytes"], one["sha256"]) for name, one in self.manifest["files"].items()]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            why = error.why if isinstance(error, FileError) else f"{type(error).__name__}: {error}"
            raise ArtifactError(f"{path}: not a manifest of an exported kernel: {why}") from None
        if library not in (file for file, _, _ in files):
            raise ArtifactError(f"{path}: its library {library} is none of its files")
        for file, size, digest in files:
            check_file(path, file, size, digest)
        try:
            self._module = tvm_ffi.load_module(str(library))
            self._function = self._module.get_function(function)
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"{path}: its library {library} cannot be loaded or has no {function}: {error}") from None

    def __call__(self, arguments: Sequence[int], stream: int) -> None:
        """Launches on the CUDA stream with this handle.  Raises TypeError or ValueError for a wrong number or type of arguments, and
        RuntimeError with CUDA's error."""
        self._function(tuple(arguments), stream)


def check_file(manifest: Path, file: Path, size: int, digest: str) -> None:
    """Raises `ArtifactError` unless the file has this size and SHA-256: mapping a truncated file would end the process."""
    try:
        os.close(open_regular(file))
        found = file.stat().st_size
        if found != size:
            raise ArtifactError(f"{manifest}: {file} has {found} bytes, not {size}: export it again")
        if sha256(file) != digest:
            raise ArtifactError(f"{manifest}: {file} is not the file that was exported (SHA-256): export it again")
    except (FileError, OSError) as error:
        why = error.why if isinstance(error, FileError) else error.strerror or error
        raise ArtifactError(f"{manifest}: {file} cannot be read: {why}") from None
