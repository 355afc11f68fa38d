"""What most accesses are to the race detector, compiled: nothing to report, and a record to update.

`quick_check.c` is compiled by the C compiler on first use and kept beside Python's own compiled files. Where that cannot be done, its
functions know nothing, and `race` decides all by itself: the findings are the same, an access takes several times as long.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .access_record import AGENT_MASK, ASYNC_BIT, CLOCK_SHIFT, Records
from .clock_rows import HAPPENED, READS
from .lane_codes import ALIKE, CODE_MASK, CODE_SHIFT

NAME = "quick_check"
SOURCE = Path(__file__).with_name(f"{NAME}.c")
FIELDS = {
    "AGENT_MASK": AGENT_MASK,
    "ASYNC_BIT": ASYNC_BIT,
    "CLOCK_SHIFT": CLOCK_SHIFT,
    "HAPPENED": HAPPENED,
    "READS": READS,
    "CODE_MASK": CODE_MASK,
    "CODE_SHIFT": CODE_SHIFT,
    "ALIKE": ALIKE,
}
Rows = NDArray[np.int32]
Flags = NDArray[np.bool_] | None


class QuickCheck(Protocol):
    """The functions, compiled or not.

    `index` is a slice or int64; `rows` are a clock's, and `proxy` is one of them that must know of writes too, or 0.
    """

    def knows(self, records: Records, index: Any, rows: Rows, row: int) -> bool:
        """Whether a row covers the records at `index`; False decides nothing."""
        ...

    def access(
        self, writes: Records, reads: Records, flags: Flags, others: Flags, index: Any, rows: Rows, proxy: int, new: Any, reading: bool
    ) -> bool:
        """Whether all that is recorded at `index` is known and nobody raised a flag; then `new` is recorded. False decides nothing."""
        ...

    def read(
        self,
        writes: Records,
        reads: Records,
        flags: Flags,
        index: Any,
        rows: Rows,
        proxy: int,
        new: Any,
        warps: Rows,
        own: int,
        synced: int,
    ) -> tuple[()] | tuple[Records, Records] | None:
        """A read that knows all writes, recorded, but for the locations and records answered: another reader stays there.

        Reads of the warp `own`, or of none (-1), follow each other (`LaneOrder.in_order`). None decides nothing.
        """
        ...

    def pages(self, index: Records, shift: int) -> list[int]:
        """Pages of 2 ** shift locations in which these lie."""
        ...

    def keep(self, some: NDArray[np.bool_], row: Records, first: int, index: Records, new: Records) -> None:
        """Records of an agent's reads beside others, in its row for the page from location `first` on."""
        ...

    def locate(self, starts: Records, size: int, first: Records, shifts: NDArray[np.uint8], page: int) -> Records | None:
        """Indices of the records of [start, start + size), of pages of 2 ** page bytes with the first record and log2 of a record's bytes
        each. None where pages differ, or have too large ones."""
        ...

    def raise_to(self, clock: Rows, rows: Sequence[int], agents: NDArray[np.int64], value: int) -> None:
        """Rows of a clock know these agents up to a value at least."""
        ...


class Uncompiled:
    """What stands for the compiled functions: decides nothing."""

    def knows(self, *_: object) -> bool:
        """Nobody can say."""
        return False

    def access(self, *_: object) -> bool:
        """Nobody can say."""
        return False

    def read(self, *_: object) -> None:
        """Nobody can say."""

    def pages(self, index: Records, shift: int) -> list[int]:
        """See `QuickCheck`."""
        return np.unique(index >> shift).tolist()

    def keep(self, some: NDArray[np.bool_], row: Records, first: int, index: Records, new: Records) -> None:
        """See `QuickCheck`."""
        here = (index >= first) & (index < first + len(row))
        index, new = index[here], new[here]
        before = row[index - first]
        several = some[index] & ((before ^ new) & CODE_MASK != 0) & (before != 0)
        row[index - first] = np.where(several, new & ~CODE_MASK | ALIKE << CODE_SHIFT, new)
        some[index] = True

    def locate(self, *_: object) -> None:
        """Nobody can say."""

    def raise_to(self, clock: Rows, rows: Sequence[int], agents: NDArray[np.int64], value: int) -> None:
        """See `QuickCheck`."""
        for row in rows:
            known = clock[row]
            known[agents] = np.maximum(known[agents], value)


def command(target: Path) -> list[str]:
    """What compiles the source."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    folders = [f"-I{folder}" for folder in (sysconfig.get_path("include"), np.get_include())]
    return [
        *compiler,
        "-O2",
        "-shared",
        "-fPIC",
        *folders,
        *(f"-D{name}={value}" for name, value in FIELDS.items()),
        str(SOURCE),
        "-o",
        str(target),
    ]


def build(folder: Path) -> Path:
    """The compiled file in a folder, made if it is not there. Raises OSError or `subprocess.SubprocessError` when it cannot be."""
    of = hashlib.sha256(SOURCE.read_bytes() + repr((FIELDS, np.__version__)).encode()).hexdigest()[:16]
    target = folder / f"{NAME}-{of}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # other processes may be at it
            made = Path(own) / target.name
            subprocess.run(command(made), check=True, capture_output=True)
            made.replace(target)
    return target


def load(file: Path) -> QuickCheck:
    """The functions of a compiled file."""
    spec = spec_from_file_location(NAME, file, loader=ExtensionFileLoader(NAME, str(file)))
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module  # type: ignore[no-any-return]


@cache
def quick_check() -> QuickCheck:
    """The compiled functions, or what stands for them."""
    try:
        return load(build(SOURCE.parent / "__pycache__"))
    except (OSError, ImportError, subprocess.SubprocessError):
        try:
            with tempfile.TemporaryDirectory() as folder:
                return load(build(Path(folder)))
        except (OSError, ImportError, subprocess.SubprocessError):
            return Uncompiled()
