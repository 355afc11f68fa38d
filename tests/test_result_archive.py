"""Records of measurements: current ones are plain files, the history is one archive per month, and every name leads to one of them."""

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megamoe_dsl.bench.results import without_folders
from result_archive import RECORD, archive_of, move, read_archive, read_record, tar

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
INDEX = RESULTS / "README.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")))
TABLES = sorted((ROOT / "src" / "megamoe_dsl" / "tuned").glob("*.json"))


@pytest.fixture(scope="module")
def plain() -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in RESULTS.glob("*.json")}


@pytest.fixture(scope="module")
def archives() -> dict[str, dict[str, bytes]]:
    return {file.name: read_archive(file) for file in RESULTS.glob("*.tar.xz")}


@pytest.fixture(scope="module")
def archived(archives: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return {name: content for records in archives.values() for name, content in records.items()}


def named_in(text: str) -> list[str]:
    return [found[0] for found in re.finditer(RECORD, text)]


def test_every_record_that_a_page_or_a_tuned_table_names_exists(plain: dict[str, bytes], archived: dict[str, bytes]) -> None:
    named = {file: named_in(file.read_text()) for file in (*PAGES, *TABLES)}
    assert {(file.name, name) for file, names in named.items() for name in names if name not in plain and name not in archived} == set()
    assert sum(map(len, named.values())) > 50, "the pattern finds the names"


def test_no_plain_record_is_without_a_page_or_table(plain: dict[str, bytes]) -> None:
    named = {name for file in (*PAGES, *TABLES) for name in named_in(file.read_text())}
    assert set(plain) - named == set(), "move it: python bench/result_archive.py FILE"


def test_plain_files_are_few() -> None:
    assert len(list(RESULTS.iterdir())) <= 60, "move older ones: python bench/result_archive.py FILE"


def test_what_a_tuned_table_rests_on_is_plain(plain: dict[str, bytes]) -> None:
    named = {entry["results"] for file in TABLES for entry in json.loads(file.read_text())["entries"]}
    assert named and named <= {f"{name}.json" for name in plain}


def test_a_record_is_plain_or_in_the_archive_of_its_month(plain: dict[str, bytes], archives: dict[str, dict[str, bytes]]) -> None:
    assert {name: archive for archive, records in archives.items() for name in records if archive_of(name) != archive} == {}
    assert set(plain) & {name for records in archives.values() for name in records} == set()


def test_the_index_names_every_record_once_and_no_other(plain: dict[str, bytes], archived: dict[str, bytes]) -> None:
    text = "\n".join(line for line in INDEX.read_text().splitlines() if line.startswith("|"))
    current, history = text.split("| Record | Run |")[1:]
    assert sorted(named_in(current)) == sorted(plain)
    assert sorted(named_in(history)) == sorted(archived)


def test_archives_depend_on_their_records_alone(archives: dict[str, dict[str, bytes]]) -> None:
    for name, records in archives.items():
        assert lzma.decompress((RESULTS / name).read_bytes()) == tar(records), name


def test_records_name_no_folder_of_a_machine(plain: dict[str, bytes], archived: dict[str, bytes]) -> None:
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from texts(one)
        elif isinstance(value, str):
            yield value

    for name, content in {**plain, **archived}.items():
        assert [text for text in texts(json.loads(content)) if without_folders(text) != text] == [], name


# --- moving
def record(folder: Path, name: str, content: str) -> Path:
    file = folder / f"{name}.json"
    file.write_text(content)
    return file


def test_moving_adds_to_the_archive_of_each_month(tmp_path: Path) -> None:
    first = [record(tmp_path, "stalls-20261130-235959", "1"), record(tmp_path, "soak_ranks-20261201-000000", "2")]
    months = tmp_path / "history-2026-11.tar.xz", tmp_path / "history-2026-12.tar.xz"
    assert move(first) == set(months)
    assert move([record(tmp_path, "mega_moe_sm90-time-20261101-000000", "3")]) == {months[0]}
    assert read_archive(months[0]) == {"mega_moe_sm90-time-20261101-000000": b"3", "stalls-20261130-235959": b"1"}
    assert read_archive(months[1]) == {"soak_ranks-20261201-000000": b"2"}
    assert {file.name for file in tmp_path.iterdir()} == {month.name for month in months}


def test_a_record_is_read_where_it_is(tmp_path: Path) -> None:
    name = "stalls-20261101-000000"
    file = record(tmp_path, name, "1")
    assert read_record(tmp_path, name) == b"1"
    move([file])
    assert read_record(tmp_path, name) == b"1"
    with pytest.raises(FileNotFoundError, match=r"stalls-20261102-000000: neither .* nor in history-2026-11\.tar\.xz"):
        read_record(tmp_path, "stalls-20261102-000000")


def test_archives_have_the_same_bytes_in_any_order_and_at_any_time(tmp_path: Path) -> None:
    names, archive = ("stalls-20261101-000000", "validate-20261102-000000"), tmp_path / "history-2026-11.tar.xz"
    move([record(tmp_path, name, name) for name in names])
    bytes_ = archive.read_bytes()
    archive.unlink()
    for name in reversed(names):
        move([record(tmp_path, name, name)])
    assert archive.read_bytes() == bytes_


def test_what_would_be_lost_or_unnamed_is_refused(tmp_path: Path) -> None:
    move([record(tmp_path, "stalls-20261101-000000", "1")])
    other = record(tmp_path, "stalls-20261101-000000", "2")
    with pytest.raises(ValueError, match=r"history-2026-11\.tar\.xz holds another stalls-20261101-000000"):
        move([other])
    assert other.read_text() == "2" and read_archive(tmp_path / "history-2026-11.tar.xz") == {"stalls-20261101-000000": b"1"}
    with pytest.raises(ValueError, match="'notes': a record is named KIND-YYYYMMDD-HHMMSS"):
        move([record(tmp_path, "notes", "")])
