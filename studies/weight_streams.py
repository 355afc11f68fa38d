"""Which reads of a layer's weights memory answers fastest: boxes of a GEMM's tiles in several orders, and bytes that follow one another.

    python studies/weight_streams.py compile FOLDER              # where nvcc is
    python studies/weight_streams.py run FOLDER [--out RESULTS]  # on a Hopper GPU: a record

The shapes are those of DeepSeek-V3's two linears with 64 tokens; kernels read and compute nothing (weight_streams.cu).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megamoe_dsl.bench.result_file import save

SOURCE, PROGRAM = Path(__file__).with_suffix(".cu"), "weight_streams"
TURNS = 7
LINEAR1, LINEAR2 = 1, 2


@dataclass(frozen=True)
class Boxes:
    """TMA boxes of 128 bytes of up to 256 rows, in a ring of `stages`.

    linear     whose weights: of Linear1 a tile is 128 rows of gate and 128 of up, or `height` rows, of Linear2 `height`
    burst      K blocks that are asked for at once
    l2         bytes that L2 is told to fetch for each row: 64, 128 or 256
    by_column  boxes of a burst K block by K block, not box by box of rows
    wide       a stage has a burst's K blocks of one box
    turn       tiles in turn, not dealt at run time
    ctas       on each SM
    """

    linear: int = LINEAR1
    burst: int = 1
    l2: int = 256
    stages: int = 5
    height: int = 256
    split: int = 1
    by_column: int = 0
    wide: int = 0
    turn: int = 0
    ctas: int = 1
    kind: str = "boxes"


@dataclass(frozen=True)
class Pieces:
    """Bulk copies of `piece` bytes that follow one another, `run` bytes of which are a CTA's, in turn or dealt."""

    piece: int
    run: int
    stages: int
    turn: int = 0
    kind: str = "pieces"


@dataclass(frozen=True)
class Copies:
    """Copies of 16 bytes, as Triton's pipelines make them: a CTA for each tile of `height` rows, 128 bytes of each at a time."""

    linear: int
    height: int
    stages: int
    kind: str = "copies"


@dataclass(frozen=True)
class Loads:
    """Loads of 16 bytes in the order of addresses, eight under way in each of 512 threads."""

    ctas: int
    kind: str = "loads"


Pattern = Boxes | Pieces | Copies | Loads
ONE_BOX = {"split": 0, "height": 128}


def patterns() -> Iterator[Pattern]:
    """All, once each."""
    for l2 in (64, 128, 256):
        for burst in (1, 2, 4):
            yield Boxes(LINEAR1, burst, l2)
            yield Boxes(LINEAR2, burst, l2, stages=11, **ONE_BOX)
        yield Boxes(LINEAR1, 2, l2, by_column=1)
    for burst in (2, 4):
        yield Boxes(LINEAR1, burst, 128, stages=6)
        yield Boxes(LINEAR1, burst, 128, stages=12 // burst, wide=1)
    yield Boxes(LINEAR1, 2, 128, turn=1)
    yield Boxes(LINEAR1, 2, 128, stages=3, ctas=2)
    for burst in (2, 4, 8):
        yield Boxes(LINEAR1, burst, 128, stages=13, **ONE_BOX)
        yield Boxes(LINEAR2, burst, 128, stages=13, **ONE_BOX)
    yield Boxes(LINEAR1, 14, 128, stages=14, **ONE_BOX)
    yield Boxes(LINEAR1, 14, 128, stages=28, split=0, height=64)
    yield Boxes(LINEAR2, 16, 128, stages=28, split=0, height=64)
    yield Boxes(LINEAR2, 2, 128, stages=6, split=0, height=256)
    yield Boxes(LINEAR2, 2, 128, stages=11, turn=1, **ONE_BOX)
    yield Boxes(LINEAR2, 2, 128, stages=6, ctas=2, **ONE_BOX)
    yield Pieces(32768, 32768, 6, turn=1)
    yield Pieces(16384, 16384, 12, turn=1)
    yield Pieces(32768, 262144, 6)
    yield Pieces(32768, 1835008, 6)
    for linear in (LINEAR1, LINEAR2):
        yield Copies(linear, 128, 4)
        yield Copies(linear, 64, 4)
    for ctas in (1, 2, 4):
        yield Loads(ctas)


def compile_program(folder: Path) -> None:
    """Raises `CalledProcessError`."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["nvcc", "-O2", "-std=c++17", "-arch=sm_90a", "-o", str(folder / PROGRAM), str(SOURCE)], check=True)


def lines() -> list[str]:
    """What the program is given, a line for each pattern; a pattern's name is its place."""
    return [" ".join([str(index), *(f"{key}={value}" for key, value in asdict(one).items())]) for index, one in enumerate(patterns())]


def run_program(folder: Path) -> list[dict[str, Any]]:
    """A record of each pattern: its fields, bytes read, microseconds, and bytes per second of the median.  Raises `CalledProcessError`."""
    listed = folder / "patterns.txt"
    listed.write_text("\n".join(lines()) + "\n")
    printed = subprocess.run([str(folder / PROGRAM), str(listed), str(TURNS)], check=True, capture_output=True, text=True).stdout
    timed = [json.loads(line) for line in printed.splitlines()]
    return [
        {"pattern": asdict(pattern), "bytes": one["bytes"], "us": one["us"], "tb_s": round(one["bytes"] / one["us"]["median"] / 1e6, 3)}
        for pattern, one in zip(patterns(), timed, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compile", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "compile":
        compile_program(given.folder)
        return
    records = run_program(given.folder)
    save(given.out, PROGRAM, records)
    for one in records:
        print(f"{one['us']['median']:8.1f} us  {one['tb_s']:.3f} TB/s  {one['pattern']}")


if __name__ == "__main__":
    main()
