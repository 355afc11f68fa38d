"""Broken address functions, fragments and orders are caught: the checks of the device expressions fail on each of them."""

import pytest
import test_device_expressions as checks
from hardware_layouts import load_columns, pool_scales, stmatrix_b8, stmatrix_b16
from hypothesis.core import StateForActualGivenExecution

from layout_algebra import join
from megamoe_dsl.blocks.sm100 import epilogue_tile
from megamoe_dsl.layouts.layout import Layout


def exchanged(fragment, first, second):
    """The fragment with two of its value modes exchanged."""
    modes = list(fragment[1].modes)
    modes[first], modes[second] = modes[second], modes[first]
    return join(fragment[0], join(*modes))


MUTANTS = {
    "Linear1 tile swizzled by other row bits": (
        "fc1_store_address",
        lambda tile, token, warp: tile + token * 64 + ((warp ^ (token & 3)) << 4),
        lambda: checks.test_fc1_bytes_reach_their_place_in_the_tile(16),
    ),
    "Linear1 tile not swizzled": (
        "fc1_store_address",
        lambda tile, token, warp: tile + token * 64 + (warp << 4),
        lambda: checks.test_fc1_bytes_reach_their_place_in_the_tile(32),
    ),
    "Linear2 halves of the wrong size": (
        "write_address",
        lambda tile, warp, lane, tokens: epilogue_tile.write_address(tile, warp, lane, 16),
        lambda: checks.test_fc2_values_reach_their_place_in_the_tile(32),
    ),
    "Linear2 read by rows of the neighbor": (
        "read_row",
        lambda warp, lane: warp * 2 + (lane >> 4 ^ 1),
        None,
    ),
    "Linear2 read without the swizzle": (
        "read_address",
        lambda tile, row, lane, tokens: tile + (lane >> 3 & 1) * tokens * 128 + row * 128 + ((lane & 7) << 4),
        lambda: checks.test_fc2_reads_whole_rows(16),
    ),
    "halves of a value exchanged": (
        "load_columns",
        lambda n: exchanged(load_columns(n), 0, 1),
        lambda: checks.test_fc1_pairs_gate_with_up(16),
    ),
    "loads of the two lane halves exchanged": (
        "load_columns",
        lambda n: exchanged(load_columns(n), 1, 2),
        lambda: checks.test_fc1_pairs_gate_with_up(16),
    ),
    "stmatrix b8 rows exchanged": (
        "stmatrix_b8",
        lambda n: exchanged(stmatrix_b8(n), 0, 1),
        lambda: checks.test_fc1_bytes_reach_their_place_in_the_tile(16),
    ),
    "stmatrix not transposed": (
        "stmatrix_b16",
        lambda n, transposed: stmatrix_b16(n, transposed=False),
        lambda: checks.test_fc2_values_reach_their_place_in_the_tile(16),
    ),
    "gate and up in runs of 16": (
        "gate_up_rows",
        lambda n: Layout((16, (n // 16, 2)), (1, (32, 16))),
        lambda: checks.test_fc1_pairs_gate_with_up(16),
    ),
    "scale words row by row": (
        "pool_scales",
        lambda blocks, m, words, pitch: join(Layout(m), *pool_scales(blocks, m, words, pitch).modes[1:]),
        checks.test_pulled_scales,
    ),
    "combine vectors of four": (
        "vector_address",
        lambda slot, lane, vector: slot + lane * 8 + vector * 256,
        checks.test_combine_vectors,
    ),
}


@pytest.mark.parametrize("mutant", [name for name, (_, _, check) in MUTANTS.items() if check])
def test_caught(monkeypatch, mutant):
    name, broken, check = MUTANTS[mutant]
    monkeypatch.setattr(checks, name, broken)
    monkeypatch.setattr(StateForActualGivenExecution, "_should_trace", lambda self: False)  # nobody reads why it fails
    with pytest.raises(AssertionError):
        check()


def test_a_harmless_mutant_is_let_through(monkeypatch):
    """Two half warps that exchange their tokens still read every row once."""
    name, broken, _ = MUTANTS["Linear2 read by rows of the neighbor"]
    monkeypatch.setattr(checks, name, broken)
    checks.test_fc2_reads_whole_rows(16)
