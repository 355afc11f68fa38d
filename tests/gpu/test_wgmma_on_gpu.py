"""Sums of a Hopper tensor core beside the simulator's, one instruction at a time."""

from __future__ import annotations

import numpy as np
import pytest

from megamoe_dsl.sim.umma import aligned_multiply_accumulate, alignment_of
from one_wgmma import TYPES, decode, draw, launch

pytestmark = pytest.mark.gpu
CASES = 40
"""Of each kind: 20,480 sums."""


@pytest.mark.parametrize("accumulate", [False, True], ids=["from zero", "accumulated"])
@pytest.mark.parametrize("name", TYPES)
def test_sums_are_the_simulators(name: str, accumulate: bool) -> None:
    a, b, c = draw(name, CASES, seed=accumulate)
    found = launch(name, a, b, c, accumulate)
    rows, columns, alignment = decode(name, a), decode(name, b), alignment_of(name, name)
    expected = [
        aligned_multiply_accumulate(one, other, before if accumulate else None, alignment)
        for one, other, before in zip(rows, columns, c, strict=True)
    ]
    others = found.view(np.uint32) != np.stack(expected).view(np.uint32)
    print(f"{name}: {found.size} sums, {others.sum()} with other bits than the simulator's")
    assert not others.any()
