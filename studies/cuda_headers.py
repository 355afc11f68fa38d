"""CUDA headers in folders, and what nvcc makes of a few lines that include them: PTX, or the numbers that a host program prints."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--diag-suppress=39,161,174,177,186,940")


class HeadersError(ValueError):
    """A folder is not what was asked for, or nvcc does not compile what includes it."""


@dataclass(frozen=True)
class CudaHeaders:
    """Headers of a project.

    own     the folder of what the project itself wrote
    others  folders of headers that it includes, in nvcc's order
    cache   where nvcc's products are kept, by what made them
    name    of the project and its version, for messages and records
    """

    own: Path
    others: tuple[Path, ...]
    cache: Path
    name: str

    @cached_property
    def digest(self) -> str:
        """Eight hexadecimal digits of the project's own headers."""
        files = sorted(self.own.rglob("*.cuh")) + sorted(self.own.rglob("*.hpp"))
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:8]

    def has(self, header: str, word: str = "") -> bool:
        """Whether there is a header of this name below `own`, with this word in it."""
        path = self.own / header
        return path.is_file() and word in path.read_text(encoding="utf-8")

    def ptx(self, source: str, arch: str) -> str:
        """PTX with source lines of a source text, for an architecture as nvcc names it (sm_100a).  Raises HeadersError with nvcc's first
        errors."""
        return self._made(source, ("--ptx", "-lineinfo", f"-arch={arch}"), Path.read_text)

    def numbers(self, source: str) -> list[int]:
        """Whole numbers that a program of this source prints on the host.  Raises HeadersError."""
        return [int(word) for word in self._made(source, (), _printed).split()]

    def _made(self, source: str, options: tuple[str, ...], read: Callable[[Path], str]) -> str:
        folders = [f"-I{folder}" for folder in (self.own.parent, *self.others)]
        key = hashlib.sha256("\n".join((self.digest, source, *options, *FLAGS)).encode()).hexdigest()[:24]
        kept = self.cache / f"{key}.txt"
        if not kept.exists():
            with tempfile.TemporaryDirectory() as folder:
                text, made = Path(folder) / "source.cu", Path(folder) / "made"
                text.write_text(source)
                done = subprocess.run([nvcc(), *options, *FLAGS, *folders, "-o", str(made), str(text)], capture_output=True, text=True)
                if done.returncode:
                    errors = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line][:3]
                    raise HeadersError(f"nvcc does not compile what includes {self.name}: {' | '.join(errors)}")
                self.cache.mkdir(parents=True, exist_ok=True)
                kept.write_text(read(made))
        return kept.read_text()


def _printed(program: Path) -> str:
    return subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60).stdout


def nvcc() -> str:
    """Path of nvcc.  Raises HeadersError where there is none."""
    found = shutil.which("nvcc")
    if found is None:
        raise HeadersError("nvcc is not in PATH: PTX of CUDA headers is made by the compiler of the CUDA toolkit")
    return found
