"""Compiled kernels in a folder, one zip file each: a cache (cache.py), and what a machine with GPUs and without the DSL runs.

A file holds `config.json`, `kernel.cubin` and `kernel.ptx`; its name has a digest of the configuration and one of the sources of the kernel
and its host-side layouts.  Kernels of another version of an installed DSL count as missing.  So do files and folders of another user, or
that others may write, because a kernel runs with all rights of its process.

Processes may share a folder: files appear whole, by rename, and one process compiles while the others wait for it.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import stat
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from ..json_file import FileError, cache_folder, open_regular, parse_json, read_all, replacing
from ..kernels.kernel import Kernel, KernelConfig
from ..kernels.registry import config_types, kernel_of
from .artifact import Artifact
from .compile import compile_kernel

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    *("blocks", "device", "hardware", "kernels", "layouts", "schedule"),
    *("activation.py", "arch.py", "recipe.py", "problem.py", "shared_experts.py", "target.py", "config_error.py"),
    *("artifact/compile.py", "quant/weights.py"),
)
"""Sources of every kernel and of the layouts of its buffers, besides the folders of families outside the package."""
SUFFIX = ".megamoe.zip"
DSL = "nvidia-cutlass-dsl"
HEAD, PTX, CUBIN = "config.json", "kernel.ptx", "kernel.cubin"
MOST_BYTES = {HEAD: 1 << 20, PTX: 64 << 20, CUBIN: 64 << 20}
"""Largest size of each part, inflated; kernels have a megabyte."""
MOST_FILE_BYTES = 32 << 20
SAY_AFTER = 5.0
"""Seconds before a process says that it waits for another one that compiles."""

log = logging.getLogger("megamoe_dsl")

Kind = TypeVar("Kind", bound=KernelConfig)


class ArtifactError(RuntimeError):
    """There is neither a usable compiled kernel nor a compiler."""


class ArtifactWarning(UserWarning):
    """The cache folder is not writable, so every process compiles its kernels."""


@lru_cache
def source_digest(kernel: Kernel) -> str:
    """Eight hexadecimal digits of the sources that decide what a kernel and its buffers look like."""
    digest = hashlib.sha256()
    for path in [*(PACKAGE / name for name in SOURCES), *kernel.sources]:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(path.parent)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


@lru_cache
def dsl_version() -> str | None:
    try:
        return version(DSL) if find_spec("cutlass") is not None else None
    except PackageNotFoundError:
        return None


def describe_config(config: KernelConfig) -> dict[str, Any]:
    """A configuration as JSON values, with the configurations that it contains."""
    kinds = {kind for _, kind in config_types().values()}

    def describe(value: Any) -> Any:
        if type(value) in kinds:
            return describe_config(value)
        return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value

    values = {one.name: describe(getattr(config, one.name)) for one in fields(cast(Any, config))}
    return {"kernel": kernel_of(config).name, "kind": type(config).__name__, **values}


def read_config(values: dict[str, Any]) -> KernelConfig:
    """Inverse of `describe_config`.  Raises LookupError for an unknown configuration, `ArtifactError` for an unknown field."""
    name = values.get("kernel", ""), values["kind"]
    if name not in config_types():
        kinds = ", ".join(kind for _, kind in config_types())
        raise LookupError(f"configuration {values['kind']!r} of kernel {name[0]!r}: must be one of {kinds}")
    kernel, kind = config_types()[name]
    known = {one.name for one in fields(kind)}
    given = {name: value for name, value in values.items() if name not in ("kernel", "kind")}
    if unknown := given.keys() - known:
        raise ArtifactError(f"configuration field {sorted(unknown)[0]!r} is unknown: the kernel was compiled by other sources")

    def read(name: str, value: Any) -> Any:
        if name == "problem":
            return kernel.problem(**value)
        return read_config(value) if isinstance(value, dict) and "kind" in value else value

    config: KernelConfig = kind(**{name: read(name, value) for name, value in given.items()})
    return config


def kernel_name(config: KernelConfig) -> str:
    """Architecture, shape, tile and eight digits of a digest of the configuration, unique in file names."""
    text = json.dumps(describe_config(config), sort_keys=True)
    return f"{config.arch}-{kernel_of(config).label(config)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def inflate(file: zipfile.ZipFile, name: str) -> bytes:
    """A part of a stored kernel.  Raises ValueError for a size or a compression method that `save` does not write."""
    info = file.getinfo(name)
    if info.file_size > MOST_BYTES[name]:
        raise ValueError(f"{name} has {info.file_size} bytes, more than {MOST_BYTES[name]}")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed by method {info.compress_type}")
    return file.read(info)


class ArtifactStore:
    """A folder of compiled kernels, by default the user's cache."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = cache_folder() if folder is None else Path(folder)

    def path(self, config: KernelConfig) -> Path:
        """The file of this configuration's kernel, compiled from the current sources."""
        return self.folder / f"{kernel_name(config)}-{source_digest(kernel_of(config))}{SUFFIX}"

    def save(self, artifact: Artifact) -> Path:
        """Writes the kernel and removes older ones of its configuration.  Returns its path; raises OSError if it cannot be written."""
        make_own_folder(self.folder)
        path = self.path(artifact.config)
        parts: dict[str, bytes] = {CUBIN: artifact.cubin, PTX: artifact.ptx.encode()}
        head = {
            "config": describe_config(artifact.config),
            "sources": source_digest(kernel_of(artifact.config)),
            "dsl": dsl_version(),
            "seconds": artifact.seconds,
            "sha256": {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()},
        }
        with replacing(path, 0o644) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            for name, part in {HEAD: json.dumps(head, indent=1).encode(), **parts}.items():
                file.writestr(name, part)
        for old in self._files(artifact.config):
            if old != path:
                old.unlink(missing_ok=True)
        return path

    def _files(self, config: KernelConfig) -> list[Path]:
        return sorted(self.folder.glob(f"{kernel_name(config)}-*{SUFFIX}"))

    def configs(self, kind: type[Kind], problem: Any = None) -> Iterator[Kind]:
        """Configurations of this class with a kernel here, optionally only those for `problem`.  Skips damaged files and configurations
        that these sources do not accept, but not kernels of other sources, which `load` refuses by default."""
        seen = set()
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                config = read_config(self._read(path)[0]["config"])
            except (ArtifactError, LookupError, ValueError, TypeError):
                continue
            if isinstance(config, kind) and config not in seen and problem in (None, config.problem):
                seen.add(config)
                yield config

    @staticmethod
    def _read(path: Path) -> tuple[dict[str, Any], str, bytes]:
        """Head, PTX and cubin of a file.  Raises `ArtifactError` when it is missing, damaged, or not trusted (`require_own`)."""
        try:
            with zipfile.ZipFile(io.BytesIO(read_own(path, MOST_FILE_BYTES))) as file:
                parts = {name: inflate(file, name) for name in MOST_BYTES}
            head, ptx = parse_json(parts[HEAD], HEAD), parts[PTX].decode()
        except FileError as error:
            raise ArtifactError(str(error)) from None
        except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
            raise ArtifactError(f"{path}: cannot be read: {error}") from None
        if not isinstance(head, dict) or not isinstance(head.get("config"), dict):
            raise ArtifactError(f"{path}: cannot be read: {HEAD} describes no configuration")
        if head.get("sha256") != {name: hashlib.sha256(parts[name]).hexdigest() for name in (CUBIN, PTX)}:
            raise ArtifactError(f"{path}: is not what was stored (SHA-256)")
        return head, ptx, parts[CUBIN]

    def load(self, config: KernelConfig, *, any_sources: bool = False) -> Artifact:
        """The stored kernel.  Raises `ArtifactError` when it is missing, damaged, or of another DSL version.  `any_sources` accepts kernels
        of other sources and DSL versions."""
        path = self._find(config, any_sources)
        head, ptx, cubin = self._read(path)
        made_by, ours = head.get("dsl"), dsl_version()
        if not any_sources and None not in (made_by, ours) and made_by != ours:
            raise ArtifactError(f"{path}: made by {DSL} {made_by}, not {ours}")
        if head.get("config") != json.loads(json.dumps(describe_config(config))) and not any_sources:
            raise ArtifactError(f"{path}: holds a kernel for another configuration")
        return Artifact(config, ptx, cubin, head.get("seconds", 0.0))

    def origin(self, config: KernelConfig) -> dict[str, str | None]:
        """Digest of the sources, and DSL version, of the kernel that `load` with `any_sources` returns; raises as it does."""
        head, *_ = self._read(self._find(config, any_sources=True))
        return {name: head.get(name) for name in ("sources", "dsl")}

    def _find(self, config: KernelConfig, any_sources: bool) -> Path:
        path, others = self.path(config), self._files(config)
        if path.exists():
            return path
        if any_sources and others:
            return others[-1]
        why = "only one from other sources" if others else "no kernel for it"
        raise ArtifactError(f"{self.folder} has {why}: {config}")

    def get(self, config: KernelConfig) -> Artifact:
        """The stored kernel, or a newly compiled one, which is stored; warns if the folder cannot be used.  Raises `ArtifactError` when the
        kernel is missing and no DSL is installed, and `CompileError`."""
        try:
            return self.load(config)
        except ArtifactError:
            if find_spec("cutlass") is None:
                raise
        if why := self.why_unusable():
            self.warn_unusable(why)
            return compile_kernel(config)
        with one_process(self.folder / f"{kernel_name(config)}.lock", kernel_name(config)):
            try:
                return self.load(config)  # another process may have been quicker
            except ArtifactError:
                artifact = compile_kernel(config)
            try:
                self.save(artifact)
            except OSError as error:
                self.warn_unusable(error.strerror or str(error))
        return artifact

    def why_unusable(self) -> str | None:
        """Why this process cannot store kernels in the folder or load them from it, or None; makes the folder if need be."""
        try:
            make_own_folder(self.folder)
            require_own_folder(self.folder)
        except OSError as error:
            return error.strerror or str(error)
        except FileError as error:
            return error.why
        return None

    def warn_unusable(self, why: str) -> None:
        """Warns once per process and folder."""
        if self.folder not in _WARNED:
            _WARNED.add(self.folder)
            warnings.warn(f"kernels cannot be stored in {self.folder} ({why}) and are compiled anew", ArtifactWarning, stacklevel=3)


@contextmanager
def one_process(place: Path, what: str) -> Iterator[None]:
    """Locks the file `place`, if the file system has locks, while one process compiles `what`; logs a long wait."""
    from filelock import FileLock, Timeout

    lock = FileLock(place)
    try:
        try:
            lock.acquire(timeout=SAY_AFTER)
        except Timeout:
            log.warning("waiting for another process that compiles %s (it holds %s)", what, lock.lock_file)
            lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


_WARNED: set[Path] = set()
ROOT = 0


def require_own(path: Path, found: os.stat_result) -> None:
    """Raises `FileError` unless the file or folder is the user's or root's, and no one else may write it."""
    if found.st_uid not in (ROOT, os.geteuid()):
        raise FileError(path, f"belongs to user {found.st_uid}: must belong to the user {os.geteuid()} or to root, for it holds code")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise FileError(path, f"may be written by others (mode {mode:o}): must not be, for it holds code (chmod go-w)")


def require_own_folder(folder: Path) -> None:
    """Raises `FileError` as `require_own`, and for a missing folder."""
    try:
        found = folder.stat()
    except (OSError, ValueError) as error:
        raise FileError(folder, getattr(error, "strerror", None) or str(error)) from None
    require_own(folder, found)


def read_own(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes; it and its folder must pass `require_own`.  Raises `FileError`."""
    require_own_folder(path.parent)
    handle = open_regular(path)
    try:
        require_own(path, os.fstat(handle))
    except FileError:
        os.close(handle)
        raise
    return read_all(handle, path, most)


def make_own_folder(folder: Path) -> None:
    """Makes a folder that others cannot write, whatever the umask.  Raises OSError, also if this process cannot write into it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
