"""Results that travel as E4M3: rows of codes and scales, the pieces that combine takes of them, and what else of the buffer they change."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hardware_layouts import combine_channels, fewest_wavefronts
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import check_region, check_views

from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.hardware.fragments import wavefronts
from megamoe_dsl.kernels.moe.layouts.smem_plan import CombinePlan, CombineRow, vector_address
from megamoe_dsl.kernels.moe.layouts.symmetric import symmetric_buffer
from megamoe_dsl.kernels.moe.roofline import Load, bound_of
from megamoe_dsl.layouts.region import U8
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem
from megamoe_dsl.recipe import BF16, COMBINE, E4M3
from megamoe_dsl.testing import problems

HIDDEN = st.integers(1, 200).map(lambda n: 256 * n)


@given(HIDDEN)
def test_a_row_is_codes_then_scales_then_what_fills_its_last_line(hidden: int) -> None:
    row = CombineRow(hidden, COMBINE[E4M3])
    assert row.first_scale == hidden and row.num_bytes % 128 == 0
    assert hidden + hidden // 128 <= row.first_scale + row.scale_bytes <= row.num_bytes < hidden + hidden // 128 + 128
    plain = CombineRow(hidden, COMBINE[BF16])
    assert (plain.num_bytes, plain.scale_bytes, plain.scaled) == (2 * hidden, 0, False)


@settings(max_examples=60)
@given(problems(), st.sampled_from((SM90, SM100)))
def test_nothing_else_of_the_buffer_changes(problem: Problem, arch: Arch) -> None:
    given_recipe = replace(problem, recipe="fp8xfp8" if arch == SM90 else "fp8xfp4")
    old, new = symmetric_buffer(given_recipe, arch), symmetric_buffer(replace(given_recipe, combine=E4M3), arch)
    check_region(new)
    check_views(new)
    assert [one for one in new if one.field.name != "combine"] == [one for one in old if one.field.name != "combine"]
    tokens, topk, row = problem.max_tokens_per_rank, problem.topk, CombineRow(problem.hidden, COMBINE[E4M3])
    field = new["combine"].field
    assert (field.shape, field.dtype) == ((topk, tokens, row.num_bytes), U8)
    assert new["combine"].offset == old["combine"].offset and new["combine"].offset % 128 == 0


@pytest.mark.parametrize(("preset", "share"), [("flash", 4224 / 8192), ("pro", 7296 / 14336)])
def test_presets_take_half_the_bytes(preset: str, share: float) -> None:
    """A 1/128 more for scales, up to the next line."""
    problem = PRESETS[preset].problem(512)
    sizes = [symmetric_buffer(replace(problem, combine=element), SM90)["combine"].field.num_bytes for element in (E4M3, BF16)]
    assert sizes[0] / sizes[1] == share


@settings(max_examples=50)
@given(HIDDEN.filter(lambda hidden: hidden <= 8192), st.integers(1, 32), st.sampled_from((4, 8)))
def test_lanes_find_their_codes_and_scales(hidden: int, topk: int, warps: int) -> None:
    """Code and scale of every channel, as `results` reads them from the slot of its piece."""
    plan = CombinePlan(CombineRow(hidden, COMBINE[E4M3]), topk, warps)
    channels, seen = combine_channels(plan.chunk), set()
    for part, lane, vector in product(range(plan.pieces), range(0, 32, 5), range(plan.chunk // 256)):
        channel = part * plan.chunk + channels(lane, (0, vector))
        assert vector_address(0, lane, vector, 1) == channel - part * plan.chunk
        scale = part * (plan.chunk // 128) + 2 * vector + (lane >> 4)
        assert scale == channel // 128 == (channel + 7) // 128 and scale < plan.row.scale_bytes
        seen.add(scale)
    assert len(seen) == hidden // 128


@pytest.mark.parametrize("vector", range(4))
def test_codes_are_read_without_conflicts(vector: int) -> None:
    addresses = [vector_address(0, lane, vector, 1) for lane in range(32)]
    assert wavefronts(addresses, 8) == fewest_wavefronts(addresses, 8) == 2


def test_work_counts_half_the_bytes_of_results() -> None:
    """x in one byte and y in two, or in one."""
    problem = replace(PRESETS["flash"].problem(512), recipe="fp8xfp8")
    load = Load.expected(problem, 512, 7 / 8)
    usual, half = (bound_of(replace(problem, combine=element), load) for element in (BF16, E4M3))
    assert half.flop == usual.flop and half.nvlink_bytes == usual.nvlink_bytes * 2 / 3
    assert usual.hbm_bytes - half.hbm_bytes == load.received * problem.hidden
