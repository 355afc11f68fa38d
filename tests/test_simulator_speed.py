"""The simulator's benchmark (bench/simulator_speed.py): recordings, turns, and what is written of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator_speed
from launch_recording import read_recording, write_recording
from megamoe_dsl.sim import GlobalMemory, Launch, Simulator
from simulator_speed import ROOT, compare, line, recording, summary

PTX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 a)
{
.reg .b32 r<3>;
.reg .b64 d<3>;
ld.param.b64 d0, [a];
mov.u32 r0, %tid.x;
mul.wide.u32 d1, r0, 4;
add.s64 d2, d0, d1;
ld.global.b32 r1, [d2];
add.s32 r2, r1, r0;
st.global.b32 [d2], r2;
ret;
}
"""


def recorded() -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """A launch that has not run, and its buffer."""
    buffer = np.arange(100, 132, dtype=np.uint32)
    memory = GlobalMemory()
    address = memory.add(buffer, "a")
    launches = [Launch((1, 1, 1), (32, 1, 1), args=(address,))]
    found = recording(PTX, 3, memory, launches)
    Simulator(PTX, memory, seed=3).run(launches)
    return found, buffer


def test_a_recording_is_what_was_there_before() -> None:
    found, after = recorded()
    [(_, name, rank, initialized, read_only, data)] = found["memory"]
    assert (name, rank, initialized, read_only) == ("a", 0, True, False)
    assert np.frombuffer(data, np.uint32).tolist() == list(range(100, 132))
    assert after.tolist() == list(range(100, 164, 2))


def test_a_file_holds_the_recording(tmp_path: Path) -> None:
    found, _ = recorded()
    found["launches"][0]["args"] = (3, b"\x00\xff")
    write_recording(tmp_path / "toy", found)
    assert read_recording(tmp_path / "toy") == found


@pytest.mark.parametrize("content", [b"", b"\x80\x04]\x94.", "{}", b"PK\x05\x06" + bytes(18), [object()]])
def test_reading_a_file_runs_no_code(tmp_path: Path, content: Any) -> None:
    """Neither a pickle nor an array of objects is read."""
    path = tmp_path / "toy.npz"
    if isinstance(content, list):
        np.savez(path, head=np.array(content, dtype=object))
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"no recording|pickle|Failed|Cannot load"):
        read_recording(path)


@pytest.mark.parametrize("race", [True, False])
def test_turns_play_it_in_processes_of_their_own(tmp_path: Path, race: bool) -> None:
    found, _ = recorded()
    write_recording(tmp_path / "toy", found)
    record = compare("toy", tmp_path / "toy", [ROOT], race, turns=2, runs=1)
    assert record["same_results"] and "factor" not in record
    [source] = record["sources"]
    assert source["instructions"] == 8
    assert [len(turn) for turn in source["seconds"]] == [2, 2]


def test_the_first_run_of_a_process_is_kept_apart() -> None:
    turns = [[{"instructions": 3000, "seconds": s} for s in turn] for turn in ((3.0, 1.0, 2.0), (2.0, 1.5, 0.5))]
    found = summary(turns)
    assert found["rate"] == {"median": 2.5, "low": 1.5, "high": 6.0}
    assert found["first_rate"] == {"median": 1.25, "low": 1.0, "high": 1.5}


def test_results_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(tree: Path, *_: object) -> list[dict[str, Any]]:
        new = tree.name == "new"
        return [{"instructions": 2000, "seconds": 1.0 if new else 2.0, "findings": 0, "memory": "a" if new else "b"}] * 2

    monkeypatch.setattr(simulator_speed, "play", play)
    monkeypatch.setattr(simulator_speed, "commit_of", lambda tree: tree.name)
    record = compare("toy", Path("toy"), [Path("new"), Path("old")], True, turns=1, runs=1)
    assert not record["same_results"] and record["factor"] == {"median": 2.0, "high": 2.0}
    text = "toy with the detector, thousand warp instructions a second: new: 2 (2 to 2); old: 1 (1 to 1), 2.00 x, RESULTS DIFFER"
    assert line(record) == text
