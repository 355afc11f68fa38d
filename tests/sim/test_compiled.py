"""What is compiled on first use: it is made once, and does as numpy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy_lanes
import pytest

from megamoe_dsl.sim import lanes
from megamoe_dsl.sim.compiled import FOLDER, build, compiled, load
from megamoe_dsl.sim.errors import SimError

NAME = "lanes"
RNG = np.random.default_rng(0)


def test_it_is_compiled_once(tmp_path: Path) -> None:
    file = build(FOLDER / f"{NAME}.c", {}, tmp_path)
    made = file.stat().st_mtime_ns
    assert build(FOLDER / f"{NAME}.c", {}, tmp_path) == file and file.stat().st_mtime_ns == made
    assert load(NAME, file).span(np.array([8, 4, 16]), 4) == (4, 16, True)
    assert build(FOLDER / f"{NAME}.c", {"OTHER": 1}, tmp_path) != file


def test_without_a_compiler_it_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    with pytest.raises(SimError, match=r"none': must be a C compiler that finds Python\.h; quick_check\.c"):
        compiled("quick_check", {"not": 1})


def test_lanes_are_uniform_alike() -> None:
    same, one_off = np.full(32, 7, np.uint64), np.full(32, 7, np.uint64)
    one_off[31] = 8
    for values, want in ((same, True), (one_off, False), (one_off[:1], True), (one_off[::31], False), (np.full(32, np.nan), True)):
        assert lanes.uniform(values) == numpy_lanes.uniform(values) == want


@pytest.mark.parametrize("size", [1, 4, 16])
def test_spans_are_alike(size: int) -> None:
    for addresses in (RNG.integers(0, 1 << 40, 32), 16 * RNG.integers(0, 99, 5)):
        assert lanes.span(addresses, size) == numpy_lanes.span(addresses, size)


@pytest.mark.parametrize(("element", "count"), [(np.uint8, 1), (np.uint32, 2), (np.uint64, 1), (np.complex128, 1)])
def test_memory_is_read_and_written_alike(element: type, count: int) -> None:
    total, memory = np.dtype(element).itemsize * count, RNG.integers(0, 100, 1000, np.uint8)
    offsets = total * RNG.integers(0, 1000 // total, 20)
    results = []
    for how in (lanes, numpy_lanes):
        data, valid = memory.copy(), np.zeros(1000, np.bool_)
        rows = data[: 1000 // total * total].view(element)
        rows = rows.reshape(-1, count) if count > 1 else rows
        assert how.take(rows, valid, offsets, total) is None
        assert not how.put(rows, valid, offsets, total, np.zeros((20, count), np.float16))
        new = how.take(rows, None, offsets[::-1].copy(), total)
        assert how.put(rows, valid, offsets, total, new)
        back = how.take(rows, valid, offsets, total)
        assert back.dtype == element and back.shape == ((20, count) if count > 1 else (20,))
        results.append((data.tolist(), valid.tolist(), back.tobytes()))
    assert results[0] == results[1] and results[0][0] != memory.tolist()


@pytest.mark.parametrize("kind", [np.uint32, np.uint64, np.int64])
def test_addresses_are_alike(kind: type) -> None:
    values = RNG.integers(0, 1 << 31, 64).astype(kind)
    for given in (values[:32], values[::2]):
        for offset in (0, 40, -8):
            ours, theirs = lanes.addresses(given, offset), numpy_lanes.addresses(given, offset)
            assert ours.dtype == theirs.dtype == np.int64 and ours.tolist() == theirs.tolist() == [int(v) + offset for v in given]


@pytest.mark.parametrize("mask", [None, RNG.random(32) < 0.5, np.arange(32) == 7])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.uint64, np.complex128])
def test_registers_become_rows_and_rows_registers(kind: type, mask: Any) -> None:
    given = RNG.integers(0, 256, 5 * 64 * np.dtype(kind).itemsize, np.uint8).view(kind).reshape(5, 64)
    registers = [*given[:4, :32], given[4, ::2]]
    rows = lanes.stacked(registers, mask)
    assert (
        rows.dtype == kind
        and rows.tobytes()
        == numpy_lanes.stacked(registers, mask).tobytes()
        == np.stack(registers, 1)[mask if mask is not None else ...].tobytes()
    )
    assert lanes.stacked(registers[4:], mask).tobytes() == numpy_lanes.stacked(registers[4:], mask).tobytes()
    ours, theirs, new = list(registers), list(registers), rows[::-1].copy()
    lanes.deliver(ours, (4, 0, 2, 1, 3), new, mask)
    numpy_lanes.deliver(theirs, (4, 0, 2, 1, 3), new, mask)
    assert [one.tobytes() for one in ours] == [one.tobytes() for one in theirs] and ours[4].dtype == kind
    assert lanes.stacked([ours[i] for i in (4, 0, 2, 1, 3)], mask).tobytes() == new.tobytes()
    if mask is not None:
        assert all(one[~mask].tobytes() == before[~mask].tobytes() for one, before in zip(ours, registers, strict=True))


def test_what_does_not_fit_is_refused() -> None:
    registers = [np.zeros(32, np.uint32)]
    with pytest.raises(TypeError, match="4 bytes"):
        lanes.deliver([np.zeros(31, np.uint32)], (0,), registers[0], None)
    with pytest.raises(ValueError, match="32 lanes of 2 columns"):
        lanes.deliver(registers, (0, 0), registers[0], None)
    with pytest.raises(IndexError, match="no register 1"):
        lanes.deliver(registers, (1,), registers[0], None)
    with pytest.raises(TypeError, match="every lane"):
        lanes.stacked(registers, np.ones(31, np.bool_))
    with pytest.raises(TypeError, match="4 unsigned"):
        lanes.addresses(np.zeros(32, np.uint16), 0)


def test_what_lies_outside_is_refused() -> None:
    with pytest.raises(IndexError, match="outside"):
        lanes.take(np.zeros(8, np.uint32), None, np.array([32]), 4)
    with pytest.raises(IndexError, match="outside"):
        lanes.put(np.zeros(8, np.uint32), None, np.array([-4]), 4, np.zeros(1, np.uint32))
    with pytest.raises(TypeError, match="int64"):
        lanes.span(np.zeros(4, np.int32), 4)
