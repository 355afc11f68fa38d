"""A kernel as a shared library that a process without the DSL loads through TVM FFI.

`export_kernel` writes into a folder:

NAME.o, NAME.so           launcher and cubin; the library exports one TVM FFI function, named after the family of kernels
libcute_dsl_runtime.so    what the launcher calls of the DSL: CUDA's runtime and error texts, found beside NAME.so
NAME.json                 manifest: configuration, grid, SMEM, arguments in order, size and digest of the two libraries; see
                          `runtime/exported_kernel.py`, which reads it

The function takes the kernel's arguments as one tuple of integers and the address of a CUDA stream.  Linking needs a C compiler, `$CC` or
cc; no GPU is needed.  The launcher is compiled for the CPU of the exporting machine, and needs this kind of CPU or a newer one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernels.kernel import KernelConfig
from ..kernels.registry import entry, kernel_of
from .cache import require_writable
from .compile import calling_the_dsl, require_whole
from .store import describe_config, dsl_version, kernel_name, source_digest

NAME_BYTES = 200
RUNTIME = "libcute_dsl_runtime.so"


class ExportError(RuntimeError):
    """The name is no file name, no C compiler was found, or the object does not link."""


@dataclass(frozen=True)
class Export:
    """Files of an exported kernel."""

    object: Path
    library: Path
    runtime: Path
    manifest: Path

    @classmethod
    def within(cls, folder: Path, name: str) -> Export:
        """Raises `ExportError` for a name that is no file's, or the runtime's."""
        is_name = name.isprintable() and "/" not in name and name not in ("", ".", "..") and len(name.encode()) <= NAME_BYTES
        if not is_name or name == Path(RUNTIME).stem:
            allowed = f"a file name without a folder, other than {Path(RUNTIME).stem}, printable, of at most {NAME_BYTES} bytes"
            raise ExportError(f"name = {name!r}: must be {allowed}")
        return cls(*(folder / one for one in (f"{name}.o", f"{name}.so", RUNTIME, f"{name}.json")))

    @property
    def files(self) -> tuple[Path, ...]:
        return self.object, self.library, self.runtime, self.manifest


def export_kernel(config: KernelConfig, folder: Path | str, name: str | None = None) -> Export:
    """Compiles the kernel and writes its files into a folder, which is made if need be, replacing files of that name; by default `name` is
    the family with architecture, shape and tile.

    Takes a few seconds.  Raises `CompileError`, `ExportError`, OSError, and `ProblemError` where the folder cannot be written.
    """
    folder, name = Path(folder), f"{kernel_of(config).name}-{kernel_name(config)}" if name is None else name
    files, compiler = Export.within(folder, name), find_compiler()
    require_writable("folder", folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as beside:
        made = Export.within(Path(beside), name)
        entry, arguments = compile_object(config, made.object)
        shutil.copyfile(find_runtime(), made.runtime)
        link(made, compiler)
        # `runtime.exported_kernel` compares these before it maps a file: a truncated one would end the process.
        mapped = {one.name: {"bytes": one.stat().st_size, "sha256": sha256(one)} for one in (made.library, made.runtime)}
        manifest = {**describe_export(config, name, entry, arguments), "files": mapped}
        made.manifest.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for new, path in zip(made.files, files.files, strict=True):
            os.replace(new, path)
    return files


def describe_export(config: KernelConfig, name: str, entry: str, arguments: list[dict[str, str]]) -> dict[str, Any]:
    """The manifest, as JSON values."""
    return {
        "name": name,
        "library": f"{name}.so",
        "function": kernel_of(config).name,
        "arch": config.arch.name,
        "kernel": entry,
        "arguments": arguments,
        "grid": [config.num_sms, 1, 1],
        "block": [config.num_threads, 1, 1],
        "cluster": [config.cluster, 1, 1],
        "dynamic_smem": kernel_of(config).dynamic_smem(config),
        "config": describe_config(config),
        "sources": source_digest(kernel_of(config)),
        "dsl": dsl_version(),
    }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_object(config: KernelConfig, path: Path) -> tuple[str, list[dict[str, str]]]:
    """Writes the object file; the kernel's name in its cubin, and name and type of each argument."""
    os.environ.setdefault("CUTE_DSL_ARCH", config.arch.compiled_for)
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    from .artifact import read_resources

    launch, placeholders = entry(config)
    with tempfile.TemporaryDirectory() as directory:
        options = f"--enable-tvm-ffi --gpu-arch={config.arch.compiled_for} --keep-cubin --dump-dir={directory}"
        # With a stream argument: the caller's current stream is only known to TVM FFI where an argument is a tensor.
        with calling_the_dsl():
            compiled = cute.compile(launch, config, placeholders, make_fake_stream(), options=options)
        cubin = compiled.__cubin__
        require_whole(directory, cubin)
    compiled.export_to_c(str(path), function_name=kernel_of(config).name)
    arguments = [{"name": argument, "type": kind.lower()} for argument, kind in kernel_of(config).arguments(config).arguments]
    return next(iter(read_resources(cubin))), arguments


def find_runtime() -> Path:
    """The DSL's runtime library.  Raises `ExportError`."""
    from cutlass.cute.runtime import find_runtime_libraries

    for found in find_runtime_libraries(enable_tvm_ffi=True):
        if Path(found).name == RUNTIME:
            return Path(found)
    raise ExportError(f"the installed DSL has no {RUNTIME}")


def find_compiler() -> list[str]:
    """The C compiler's command, with the options that `$CC` gives it.  Raises `ExportError`."""
    given = os.environ.get("CC") or "cc"
    try:
        command = shlex.split(given)
    except ValueError:  # a quotation without an end
        command = []
    if not command or shutil.which(command[0]) is None:
        raise ExportError(f"CC = {given!r}: must be an installed C compiler, with options or without")
    return command


def link(files: Export, compiler: list[str]) -> None:
    """Makes the shared library.  Raises `ExportError` with what the compiler says."""
    # TVM FFI's own symbols come from the process that loads the library.
    runtime = (f"-L{files.runtime.parent}", f"-l:{RUNTIME}", "-Wl,-rpath,$ORIGIN")
    command = [*compiler, "-shared", "-o", str(files.library), str(files.object), *runtime]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(f"{shlex.join(compiler)} cannot link {files.object.name}\n{done.stderr.strip()}")
