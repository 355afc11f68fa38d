"""The study of reads of weights (studies/weight_streams.py): its patterns are what its program takes, fit an SM, and are the record's."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import weight_streams
from megamoe_dsl.arch import SM90
from weight_streams import LINEAR1, Boxes, Pattern, Pieces, lines, patterns

BOX_ROWS = 128
K_BLOCKS = {1: 56, 2: 16}


def ring_bytes(pattern: Boxes) -> int:
    """Of shared memory."""
    rows = min(pattern.height, BOX_ROWS)
    return pattern.stages * (pattern.burst if pattern.wide else pattern.height // rows) * rows * 128


def test_no_pattern_is_there_twice() -> None:
    assert len(set(patterns())) == len(list(patterns())) == len(lines())


def test_the_program_knows_every_field() -> None:
    source = weight_streams.SOURCE.read_text()
    known = {*re.findall(r'number\("(\w+)"', source), "kind"}
    assert {field for one in patterns() for field in asdict(one)} <= known
    assert {one.kind for one in patterns()} == set(re.findall(r'one\.kind == "(\w+)"', source))


@pytest.mark.parametrize("pattern", [one for one in patterns() if isinstance(one, Boxes)], ids=str)
def test_boxes_fit_and_divide(pattern: Boxes) -> None:
    """A burst needs as many stages at once; gate and up are Linear1's."""
    assert pattern.ctas * ring_bytes(pattern) <= SM90.smem_bytes
    assert K_BLOCKS[pattern.linear] % pattern.burst == 0
    assert pattern.wide or pattern.burst <= pattern.stages
    assert pattern.linear == LINEAR1 or not pattern.split


def test_pieces_fit() -> None:
    found: list[Pattern] = [one for one in patterns() if isinstance(one, Pieces)]
    assert found
    for one in found:
        assert isinstance(one, Pieces) and one.stages * one.piece <= SM90.smem_bytes and one.run % one.piece == 0


def test_patterns_are_those_of_the_record() -> None:
    record = Path(weight_streams.__file__).parents[1] / "bench/results/weight_streams-20261123-152822.json"
    assert [one["pattern"] for one in json.loads(record.read_text())["records"]] == [asdict(one) for one in patterns()]
