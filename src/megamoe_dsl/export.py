"""A kernel as a shared library that a process without the DSL loads through TVM FFI.

`export_kernel` writes into a folder:

NAME.o, NAME.so           launcher and cubin; the library exports one TVM FFI function, `mega_moe`
libcute_dsl_runtime.so    what the launcher calls of the DSL: CUDA's runtime and error texts, found beside NAME.so
NAME.json                 manifest: configuration, grid, SMEM, arguments in order; see `runtime/exported_kernel.py`, which reads it

The function takes the kernel's arguments as one tuple of integers (64-bit but for two 32-bit words) and the address of a CUDA stream.
Linking needs a C compiler, `$CC` or cc; compiling needs no GPU.

The launcher is compiled for the CPU of the machine that exports, AVX-512 included where it has that: with TVM FFI the DSL takes no other
host target.  Load it on a CPU of that kind or a newer one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compile import CompileError, naming_the_compiler
from .runtime.artifact_store import describe_config, dsl_version, source_digest

if TYPE_CHECKING:
    from .kernels.mega_moe.target import Config

FUNCTION = "mega_moe"
RUNTIME = "libcute_dsl_runtime.so"


class ExportError(RuntimeError):
    """The object cannot be linked."""


@dataclass(frozen=True)
class Export:
    """Files of an exported kernel."""

    object: Path
    library: Path
    runtime: Path
    manifest: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return self.object, self.library, self.runtime, self.manifest


def export_kernel(config: Config, folder: Path | str, name: str | None = None) -> Export:
    """Compiles the kernel and writes its files into a folder, which is made if need be; by default `name` is architecture and tile.

    Takes a few seconds.  Raises `CompileError`, `ExportError` without a C compiler, and OSError.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = name or f"mega_moe_{config.arch}_m{config.block_m}"
    files = Export(*(folder / one for one in (f"{name}.o", f"{name}.so", RUNTIME, f"{name}.json")))
    entry, arguments = compile_object(config, files.object)
    shutil.copyfile(find_runtime(), files.runtime)
    link(files)
    manifest = {
        "name": name,
        "library": files.library.name,
        "function": FUNCTION,
        "arch": config.arch,
        "kernel": entry,
        "arguments": arguments,
        "grid": [config.num_sms, 1, 1],
        "block": [config.num_threads, 1, 1],
        "cluster": [config.cluster, 1, 1],
        "dynamic_smem": config.smem.num_bytes,
        "config": describe_config(config),
        "sources": source_digest(),
        "dsl": dsl_version(),
    }
    files.manifest.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return files


def compile_object(config: Config, path: Path) -> tuple[str, list[dict[str, str]]]:
    """Writes the object file; the kernel's name in its cubin, and name and type of each argument."""
    os.environ.setdefault("CUTE_DSL_ARCH", config.arch)
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    from .cubin import read_resources
    from .kernels.target import entry

    launch, placeholders = entry(config)
    with tempfile.TemporaryDirectory() as directory:
        options = f"--enable-tvm-ffi --gpu-arch={config.arch} --keep-cubin --dump-dir={directory}"
        # With a stream argument: the caller's current stream is only known to TVM FFI where an argument is a tensor.
        with naming_the_compiler():
            compiled = cute.compile(launch, config, placeholders, make_fake_stream(), options=options)
        cubin = compiled.__cubin__
    if not cubin:
        raise CompileError("the DSL kept no cubin")
    compiled.export_to_c(str(path), function_name=FUNCTION)
    return next(iter(read_resources(cubin))), describe_arguments(placeholders)


def describe_arguments(placeholders: Any) -> list[dict[str, str]]:
    """Name and type of every field of a kernel's argument dataclass."""
    return [{"name": one.name, "type": type(getattr(placeholders, one.name)).__name__.lower()} for one in fields(placeholders)]


def find_runtime() -> Path:
    """The DSL's runtime library.  Raises `ExportError`."""
    from cutlass.cute.runtime import find_runtime_libraries

    for found in find_runtime_libraries(enable_tvm_ffi=True):
        if Path(found).name == RUNTIME:
            return Path(found)
    raise ExportError(f"the installed DSL has no {RUNTIME}")


def link(files: Export) -> None:
    """Makes the shared library.  Raises `ExportError` with what the compiler says."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise ExportError("no C compiler to link with: install one, or set CC")
    # TVM FFI's own symbols come from the process that loads the library.
    command = [
        compiler,
        "-shared",
        "-o",
        str(files.library),
        str(files.object),
        f"-L{files.runtime.parent}",
        f"-l:{RUNTIME}",
        "-Wl,-rpath,$ORIGIN",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExportError(f"{compiler} cannot link {files.object}\n{done.stderr.strip()}")
