"""Layers whose hidden and intermediate fill no whole tiles: what lies where in memory, and who addresses it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from hardware_layouts import combine_channels
from hypothesis import given
from hypothesis import strategies as st

from megamoe_dsl.arch import SM90
from megamoe_dsl.cases import random_weights
from megamoe_dsl.kernels.moe.layouts.smem_plan import LANE_VECTOR, LANES, TILE_ROWS, VECTOR, CombinePlan, CombineRow, row_chunks
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.kernels.moe.sm90.memory_plan import pull_chunk
from megamoe_dsl.problem import CHANNEL_STEP, Problem
from megamoe_dsl.quant import inverse_transform_weights, transform_weights, weight_names
from megamoe_dsl.quant.packed_tiles import tiled_shapes
from megamoe_dsl.recipe import COMBINE
from megamoe_dsl.testing import configs_sm90, problems

channels = st.integers(1, 16384 // CHANNEL_STEP).map(lambda n: n * CHANNEL_STEP)
results = st.sampled_from(tuple(COMBINE.values()))


@given(channels)
def test_chunks_are_the_row(hidden: int) -> None:
    begins, sizes = zip(*row_chunks(hidden, pull_chunk(hidden)), strict=True)
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    assert list(begins) == [0, *ends[:-1]] and ends[-1] == hidden
    assert all(begin % 16 == 0 and size % 16 == 0 and 0 < size <= pull_chunk(hidden) for begin, size in zip(begins, sizes, strict=True))


@given(channels, st.integers(1, 10), st.sampled_from((4, 8)), results)
def test_pieces_are_the_result_and_no_lane_reads_beyond_one(hidden, topk, warps, form) -> None:
    """Each channel of a token belongs to one lane; lanes that have none read what another lane has."""
    plan = CombinePlan(CombineRow(hidden, form), topk, warps)
    sizes = [plan.channels(part) for part in range(plan.pieces)]
    assert sum(sizes) == hidden and sizes[:-1] == [plan.chunk] * (plan.pieces - 1) and 0 < sizes[-1] <= plan.chunk
    assert all(part * plan.part_bytes % 16 == 0 and size * plan.row.value_bytes % 16 == 0 for part, size in enumerate(sizes))
    owner = combine_channels(plan.chunk)
    for size in {sizes[0], sizes[-1]}:
        for vector in range(plan.chunk // LANE_VECTOR):
            for lane in range(LANES):
                at, part = plan.place(lane, vector, size)
                found = part * LANE_VECTOR + at * VECTOR
                mine = owner(lane, vector * VECTOR)
                assert found + VECTOR <= size and (found == mine or mine >= size)


@given(channels, results)
def test_what_is_stored_of_a_tile_is_in_the_row(hidden, form) -> None:
    """Eight channels at a time, all or none; scales of the tile's halves have a place, those that no channel has too."""
    row, tiles = CombineRow(hidden, form), -(-hidden // TILE_ROWS)
    firsts = range(0, tiles * TILE_ROWS, VECTOR)
    assert [first for first in firsts if row.holds(first * row.value_bytes)] == list(range(0, hidden, VECTOR))
    assert not row.scaled or row.first_scale + 2 * tiles <= row.first_scale + row.scale_bytes <= row.num_bytes


@given(configs_sm90())
def test_maps_and_weights_of_sm90(config) -> None:
    """Maps of tokens and outputs are as wide as their rows; those of weights as high as the tiles, which cover the layer's."""
    problem, region = config.problem, symmetric_buffer(config.problem, config.arch)
    maps = config.tensor_maps(0, {"fc1": 0, "fc2": 0})
    tokens, sf, weights, _, _, acts, acts_sf, weights2, *_, output, _ = maps
    rows = [problem.formats.hidden.row_bytes(channels) for channels in (problem.hidden, problem.intermediate)]
    assert [tokens.dims[0], acts.dims[0], output.dims[0]] == [*rows, rows[1]]
    scales = ((sf, "fc1_sf"), (acts_sf, "fc2_sf")) if config.scaled else ()
    for one, name in ((tokens, "fc1_acts"), (acts, "fc2_acts"), (output, "fc2_acts"), *scales):
        width = one.dtype.bits // 8
        assert one.address == region.address(0, name) and one.dims[0] * one.dims[1] * width == region[name].field.num_bytes
        assert one.strides == (one.dims[0] * width,) and one.strides[0] % 16 == 0
    shapes, lines = tiled_shapes(problem), config.weight_lines
    for one, name, tiles, k_blocks in (
        (weights, "fc1", config.fc1_n_blocks, config.fc1_k_blocks),
        (weights2, "fc2", config.fc2_n_blocks, config.fc2_k_blocks),
    ):
        parts, rows, k = shapes[name]
        assert (tiles * TILE_ROWS, k_blocks * config.block_k) == (parts * rows, k)
        assert one.dims[1] == problem.experts_per_rank * tiles * k_blocks * lines


@given(problems(whole_tiles=False), st.sampled_from(("fp8xfp8", "fp8xmxfp4", "fp8xfp4", "mxf4xmxf4", "bf16xbf16")))
def test_rows_of_the_symmetric_buffer_do_not_overlap(problem, recipe) -> None:
    """Fields follow one another, and every row of tokens begins where bulk copies can begin."""
    region = symmetric_buffer(replace(problem, recipe=recipe), SM90)
    places = list(region)
    assert all(one.offset + one.field.num_bytes <= other.offset for one, other in pairwise(places))
    for name in ("x", "fc1_acts", "fc2_acts", "combine"):
        assert region[name].field.strides[-2] % 16 == 0
    assert region["x_sf"].field.strides[0] % 4 == 0


@given(st.sampled_from(("fp8xfp8", "fp8xmxfp4", "bf16xbf16")), st.booleans())
def test_weights_there_and_back(recipe, biases) -> None:
    problem = Problem(320, 192, 2, 1, recipe=recipe, biases=biases)
    given = random_weights(problem, 0, 0)
    names = weight_names(problem)
    there = transform_weights(problem, SM90, given)
    back = inverse_transform_weights(problem, SM90, there)
    for name in names:
        if recipe != "fp8xmxfp4" or not name.endswith("_sf"):  # blocks of zeros may have another scale
            assert torch.equal(getattr(back, name).view(torch.uint8), getattr(given, name).view(torch.uint8)), name
