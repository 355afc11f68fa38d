"""Compiled kernels in a folder, one zip file each: what a machine with GPUs and without the DSL runs.

A file holds `config.json`, `kernel.cubin` and `kernel.ptx`; its name carries a digest of the configuration and one of the sources that
the kernel and its host-side layouts come from, so that a kernel never meets a buffer laid out by other code.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ..compile import Artifact, compile_kernel
from ..config import KernelConfig
from ..config_pre_dispatch import PreDispatchConfig
from ..config_sm90 import Sm90Config
from ..kernels.target import AnyConfig
from ..problem import Problem

PACKAGE = Path(__file__).parents[1]
SOURCES = ("kernels", "device", "layouts", "schedule", "problem.py", "config.py", "config_sm90.py", "config_pre_dispatch.py", "compile.py")
CONFIGS: dict[str, type[Any]] = {kind.__name__: kind for kind in (KernelConfig, Sm90Config, PreDispatchConfig)}
SUFFIX = ".megamoe.zip"

Kind = TypeVar("Kind", KernelConfig, Sm90Config, PreDispatchConfig)


class ArtifactError(RuntimeError):
    """No usable compiled kernel, and no compiler to make one."""


@lru_cache
def source_digest() -> str:
    """Eight hexadecimal digits of the sources that decide what a kernel and its buffers look like."""
    digest = hashlib.sha256()
    for name in SOURCES:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def describe_config(config: AnyConfig) -> dict[str, Any]:
    """A configuration as JSON values."""
    return {"kind": type(config).__name__, **asdict(config)}


def read_config(values: dict[str, Any]) -> AnyConfig:
    """Inverse of `describe_config`.  Raises `ArtifactError` when a field is unknown."""
    kind = CONFIGS[values["kind"]]
    known = {one.name for one in fields(kind)}
    given = {name: value for name, value in values.items() if name != "kind"}
    if unknown := given.keys() - known:
        raise ArtifactError(f"configuration field {sorted(unknown)[0]!r} is unknown: the kernel was compiled by other sources")
    config: AnyConfig = kind(**{**given, "problem": Problem(**given["problem"])})
    return config


class ArtifactStore:
    """A folder of compiled kernels."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def path(self, config: AnyConfig) -> Path:
        """Where the kernel of this configuration lies, compiled from the present sources."""
        return self.folder / f"{self._stem(config)}-{source_digest()}{SUFFIX}"

    @staticmethod
    def _stem(config: AnyConfig) -> str:
        p = config.problem
        text = json.dumps(describe_config(config), sort_keys=True)
        shape = f"{p.hidden}x{p.intermediate}-e{p.num_experts}-k{p.topk}-r{p.num_ranks}-t{p.max_tokens_per_rank}"
        kernel = "pre" if isinstance(config, PreDispatchConfig) else f"m{config.block_m}"
        return f"{config.arch}-{shape}-{kernel}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def save(self, artifact: Artifact) -> Path:
        """Writes the kernel; older ones of the same configuration go.  Returns its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(artifact.config)
        head = {"config": describe_config(artifact.config), "sources": source_digest(), "seconds": artifact.seconds}
        partial = path.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("config.json", json.dumps(head, indent=1))
            file.writestr("kernel.cubin", artifact.cubin)
            file.writestr("kernel.ptx", artifact.ptx)
        partial.replace(path)
        for old in self._files(artifact.config):
            if old != path:
                old.unlink()
        return path

    def _files(self, config: AnyConfig) -> list[Path]:
        return sorted(self.folder.glob(f"{self._stem(config)}-*{SUFFIX}"))

    def configs(self, kind: type[Kind], problem: Problem | None = None) -> Iterator[Kind]:
        """Configurations of this class that have a kernel here, all or those for `problem`; those that other sources know are left out."""
        seen = set()
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            with zipfile.ZipFile(path) as file:
                head = json.loads(file.read("config.json"))
            try:
                config = read_config(head["config"])
            except (ArtifactError, ValueError, TypeError):
                continue
            if isinstance(config, kind) and config not in seen and problem in (None, config.problem):
                seen.add(config)
                yield config

    def load(self, config: AnyConfig, *, any_sources: bool = False) -> Artifact:
        """The stored kernel.  Raises `ArtifactError` when there is none; `any_sources` takes one that other sources made."""
        path = self.path(config)
        if not path.exists():
            others = self._files(config)
            if not (any_sources and others):
                why = "only one from other sources" if others else "no kernel for it"
                raise ArtifactError(f"{self.folder} has {why}: {config}")
            path = others[-1]
        with zipfile.ZipFile(path) as file:
            seconds = json.loads(file.read("config.json"))["seconds"]
            return Artifact(config, config.arch, file.read("kernel.ptx").decode(), file.read("kernel.cubin"), seconds)

    def get(self, config: AnyConfig) -> Artifact:
        """The stored kernel, or a new one, which is stored.  Raises `ArtifactError` when that takes a DSL that is not installed."""
        try:
            return self.load(config)
        except ArtifactError:
            if find_spec("cutlass") is None:
                raise
        artifact = compile_kernel(config)
        self.save(artifact)
        return artifact
