"""CUDA headers of another project, and what nvcc makes of a few lines that include them: PTX, a cubin, or numbers of a host program."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--diag-suppress=39,161,174,177,186,940")


class HeadersError(ValueError):
    """A folder lacks a header, there is no nvcc, or nvcc does not compile what includes the headers."""


@dataclass(frozen=True)
class CudaHeaders:
    """Headers below `folder`; nvcc's products are kept in `cache`, by what made them.  Raises HeadersError without `needed`."""

    folder: Path
    needed: str
    cache: Path

    def __post_init__(self) -> None:
        if not (self.folder / self.needed).is_file():
            raise HeadersError(f"{self.folder} has no {self.needed}")

    @cached_property
    def digest(self) -> str:
        """Eight hexadecimal digits of the needed header's folder."""
        files = sorted((self.folder / self.needed).parents[1].rglob("*.cuh"))
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:8]

    def ptx(self, source: str, arch: str) -> str:
        """PTX with source lines of a source text, for an architecture as nvcc names it (sm_100a).  Raises HeadersError."""
        return self._made(source, ("--ptx", "-lineinfo", f"-arch={arch}"), Path.read_bytes).decode()

    def cubin(self, source: str, arch: str, flags: tuple[str, ...] = ()) -> bytes:
        """Machine code for an architecture, with further flags.  Raises HeadersError."""
        return self._made(source, ("--cubin", f"-arch={arch}", *flags), Path.read_bytes)

    def numbers(self, source: str) -> list[int]:
        """Whole numbers that a program of this source prints on the host.  Raises HeadersError."""
        return [int(word) for word in self._made(source, (), _printed).split()]

    def _made(self, source: str, options: tuple[str, ...], read: Callable[[Path], bytes]) -> bytes:
        key = hashlib.sha256("\n".join((self.digest, source, *options, *FLAGS)).encode()).hexdigest()[:24]
        kept = self.cache / key
        if not kept.exists():
            with tempfile.TemporaryDirectory() as folder:
                text, made = Path(folder) / "source.cu", Path(folder) / "made"
                text.write_text(source)
                command = ["nvcc", *options, *FLAGS, f"-I{self.folder}", "-o", str(made), str(text)]
                try:
                    done = subprocess.run(command, capture_output=True, text=True)
                except FileNotFoundError as error:
                    raise HeadersError("nvcc of CUDA 13 is not in PATH") from error
                if done.returncode:
                    errors = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line][:3]
                    raise HeadersError(f"nvcc does not compile what includes {self.needed}: {' | '.join(errors)}")
                self.cache.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(read(made))
        return kept.read_bytes()


def _printed(program: Path) -> bytes:
    return subprocess.run([str(program)], capture_output=True, check=True, timeout=60).stdout
