"""Kernels of points into a folder, where the DSL is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore


def compile_missing(wanted: Collection[Any], folder: Path) -> int:
    """Compiles those of the configurations that the folder lacks; how many."""
    store = ArtifactStore(folder)
    missing = [config for config in wanted if not store.path(config).exists()]
    for config in missing:
        store.save(compile_kernel(config))
    return len(missing)
