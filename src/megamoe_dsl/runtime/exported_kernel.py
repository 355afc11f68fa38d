"""A kernel that `megamoe export` wrote, called through TVM FFI: neither the DSL nor torch is imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .artifact_store import ArtifactError, read_config, source_digest

if TYPE_CHECKING:
    from ..kernels.target import AnyConfig


class ExportedKernel:
    """Loads the library that a manifest names.  On GPUs the cubin goes to a device at its first launch there.

    Raises `ArtifactError` for a manifest that is damaged or, unless `any_sources`, made by other sources than those that would lay out its
    buffers.

        kernel = ExportedKernel("build/mega_moe_sm_90a_m64.json")
        kernel(buffers.arguments(peers, y, num_tokens, rank, watchdog_ns), torch.cuda.current_stream().cuda_stream)
    """

    def __init__(self, manifest: Path | str, *, any_sources: bool = False) -> None:
        import tvm_ffi

        path = Path(manifest)
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            made_by, library = self.manifest["sources"], path.parent / self.manifest["library"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ArtifactError(f"{path}: not a manifest of an exported kernel: {error}") from None
        if not any_sources and made_by != source_digest():
            raise ArtifactError(f"{path}: exported from other sources; export it again")
        self.config: AnyConfig = read_config(self.manifest["config"])
        self._module = tvm_ffi.load_module(str(library))
        self._function = self._module.get_function(self.manifest["function"])

    @property
    def argument_names(self) -> list[str]:
        """In the order of a launch."""
        return [one["name"] for one in self.manifest["arguments"]]

    def __call__(self, arguments: Sequence[int], stream: int) -> None:
        """Launches on a CUDA stream, given by its address.

        Raises TypeError or ValueError for arguments of another number or type, and RuntimeError with CUDA's error.
        """
        self._function(tuple(arguments), stream)
