"""The measured points of one GPU: `<gpu>.json` beside this file, of GEMMs `<gpu>-gemm.json`, of whole layers `<gpu>-ep.json`, one
entry per line."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from math import log
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..json_file import FileError, read_json_object
from .entry import AnyEntry, Entry, EpEntry, GemmEntry, LaunchEntry, key_of

FOLDER = Path(__file__).parent
DEFAULT_GPU = "NVIDIA H200"
REACH = 2.0  # an entry speaks for up to so many times more or fewer tokens


One = TypeVar("One", bound=AnyEntry)


class TableError(ValueError):
    """A file is not a table that this release of `megamoe tune` has written."""


@dataclass(frozen=True)
class Table(Generic[One]):
    """Entries of one kind of a GPU, as `torch.cuda.get_device_name()` names it, in the order of their keys."""

    gpu: str
    entries: tuple[One, ...] = ()
    kind: type[Any] = Entry

    @classmethod
    def read(cls, gpu: str, folder: Path = FOLDER, kind: type[Any] = Entry) -> Table[Any]:
        """The GPU's table; an empty one for a GPU that nobody measured.  Raises `TableError` for another release's file."""
        path = path_of(gpu, folder, kind)
        if not os.path.lexists(path):
            return cls(gpu, (), kind)
        try:
            return cls(gpu, tuple(kind(**one) for one in read_json_object(path)["entries"]), kind)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = error.why if isinstance(error, FileError) else error
            raise TableError(f"{path}: no table of this release, {why}; remove it, and `megamoe tune --from` makes it anew") from error

    def write(self, folder: Path = FOLDER) -> Path:
        """Replaces the GPU's file as a whole; returns its path.  Raises OSError where that cannot be written."""
        path = path_of(self.gpu, folder, self.kind)
        lines = ",\n".join(json.dumps(asdict(one)) for one in self.entries)
        handle, partial = tempfile.mkstemp(dir=folder, prefix=path.name, suffix=".partial")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f'{{"gpu": {json.dumps(self.gpu)}, "entries": [\n{lines}\n]}}\n')
            os.chmod(partial, 0o644)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        return path

    def having(self, entry: One) -> Table[One]:
        """This table with `entry` in place of the one with its key, if there is one."""
        kept = {key_of(one): one for one in (*self.entries, entry)}
        return Table(self.gpu, tuple(kept[key] for key in sorted(kept)), self.kind)

    def at(self, share: Any, expected: float) -> One | None:
        """The entry with this key."""
        return next((one for one in self.by_share.get(share, ()) if one.expected == expected), None)

    def near(self, share: Any, expected: float) -> list[One]:
        """Entries of a share within `REACH` of `expected` tokens per expert, the nearest first, in the ratio of their tokens."""
        within = [one for one in self.by_share.get(share, ()) if expected / REACH <= one.expected <= expected * REACH]
        return sorted(within, key=lambda one: abs(log(one.expected / expected)))

    @cached_property
    def by_share(self) -> dict[Any, list[One]]:
        """Entries of each share, in the table's order."""
        found: dict[Any, list[One]] = {}
        for one in self.entries:
            found.setdefault(one.share, []).append(one)
        return found


def path_of(gpu: str, folder: Path = FOLDER, kind: type[Any] = Entry) -> Path:
    """NVIDIA H200: nvidia_h200.json, of GEMMs nvidia_h200-gemm.json."""
    return folder / (re.sub(r"[^a-z0-9]+", "_", gpu.lower()) + kind.SUFFIX + ".json")


@lru_cache
def tuned_table(gpu: str) -> Table[Entry]:
    """The table that comes with the package."""
    return Table.read(gpu)


@lru_cache
def tuned_gemms(gpu: str) -> Table[GemmEntry]:
    return Table.read(gpu, kind=GemmEntry)


@lru_cache
def tuned_layers(gpu: str) -> Table[EpEntry]:
    """The table of the halves of expert-parallel layers."""
    return Table.read(gpu, kind=EpEntry)


@lru_cache
def tuned_launches(gpu: str) -> Table[LaunchEntry]:
    """The table of ways to launch a layer on one GPU."""
    return Table.read(gpu, kind=LaunchEntry)
