"""Records of earlier kernels, compressed: one archive per month (bench/results/README.md).

python bench/result_archive.py bench/results/KIND-DATE.json [...]    # moves records into the archives of their months

Reading needs no script: `tar -tf ARCHIVE` lists, `tar -xOf ARCHIVE NAME.json` prints.
"""

from __future__ import annotations

import io
import lzma
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

RECORD = re.compile(r"[a-z0-9_]+(?:-[a-z]+)?-(\d{4})(\d{2})\d{2}-\d{6}")
"""The name of a record without its suffix: which script, sometimes which kind of run, then when (UTC)."""


def archive_of(record: str) -> str:
    """The name of the archive for a record.

    Raises:
        ValueError: `record` is not KIND-DATE-TIME.
    """
    found = RECORD.fullmatch(record)
    if not found:
        raise ValueError(f"{record!r}: a record is named KIND-YYYYMMDD-HHMMSS")
    return f"history-{found[1]}-{found[2]}.tar.xz"


def read_archive(path: Path) -> dict[str, bytes]:
    """Names (without `.json`) and contents of an archive's records."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        return {member.name.removesuffix(".json"): archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def read_record(folder: Path, name: str) -> bytes:
    """The contents of a record, a plain file of `folder` or in its month's archive there.

    Raises:
        FileNotFoundError: it is neither.
    """
    plain, archive = folder / f"{name}.json", folder / archive_of(name)
    if plain.exists():
        return plain.read_bytes()
    records = read_archive(archive) if archive.exists() else {}
    if name not in records:
        raise FileNotFoundError(f"{name}: neither {plain} nor in {archive.name}")
    return records[name]


def tar(records: Mapping[str, bytes]) -> bytes:
    """A tar file that depends on the records alone: sorted, and without the times and owners of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(records):
            member = tarfile.TarInfo(f"{name}.json")
            member.size, member.mode = len(records[name]), 0o644
            archive.addfile(member, io.BytesIO(records[name]))
    return buffer.getvalue()


def move(files: Sequence[Path]) -> set[Path]:
    """Moves plain records into the archives beside them, and returns these.  Nothing is deleted before the archives are written.

    Raises:
        ValueError: a name is no record's, or its archive holds other contents under it.
    """
    archives: dict[Path, dict[str, bytes]] = {}
    for file in files:
        path = file.parent / archive_of(file.stem)
        if path not in archives:
            archives[path] = read_archive(path) if path.exists() else {}
        content = file.read_bytes()
        if archives[path].setdefault(file.stem, content) != content:
            raise ValueError(f"{path.name} holds another {file.stem}")
    for path, records in archives.items():
        partial = path.with_suffix(".partial")
        partial.write_bytes(lzma.compress(tar(records), preset=9 | lzma.PRESET_EXTREME))
        partial.replace(path)
    for file in files:
        file.unlink()
    return set(archives)


if __name__ == "__main__":
    for path in sorted(move([Path(one) for one in sys.argv[1:]])):
        print(path)
