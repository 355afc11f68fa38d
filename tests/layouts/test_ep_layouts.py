"""The symmetric buffer of the expert-parallel kernels, and the rows of its pool, of random problems."""

from __future__ import annotations

import math
import re
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_properties import check_region

from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, GemmCombineConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import (
    PER_LAUNCH,
    ROW_BLOCK,
    EpBarrier,
    EpLaunch,
    Kept,
    first_rows,
    padded_rows,
    pool_rows,
    send_capacity,
    symmetric_buffer,
)
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.testing import problems


@settings(deadline=None)
@given(problems(max_hidden=1024, max_tokens=64, max_ranks=8))
def test_fields_are_in_bounds_and_apart(problem) -> None:
    region = symmetric_buffer(problem)
    check_region(region)
    assert all(region[name].field.shape[0] == len(EpLaunch) for name in PER_LAUNCH)
    assert region["rank_signal"].field.shape[1] == len(EpBarrier)
    assert all(region[name].offset % 128 == 0 for name in ("x", "fc1_acts", "fc1_sf", "results"))
    assert region["fc1_acts"].field.shape[0] == region["fc1_sf"].field.shape[1] == pool_rows(problem)
    assert region["results"].field.shape == (problem.max_tokens_per_rank * problem.topk, problem.hidden)
    places, results = (symmetric_buffer(problem, one) for one in (Kept.PLACES, Kept.RESULTS))
    check_region(results)
    assert all(places[one.field.name] == one for one in region) and all(results[one.field.name] == one for one in places)
    assert results["kept"].field.shape[0] == pool_rows(problem)


def test_ways_that_are_off_take_no_memory() -> None:
    """Eight ranks of 8192 tokens of DeepSeek-V3: 4 MiB for two-stage dispatch, and the results of all rows where they are kept."""
    problem = PRESETS["deepseek-v3"].problem(8192, recipe="fp8xfp8")
    bare, places, results = (symmetric_buffer(problem, keeps) for keeps in Kept)
    assert not {"sources", "stored", "finished", "kept"} & {one.field.name for one in bare}
    assert {one.field.name for one in places} - {one.field.name for one in bare} == {"sources", "stored"}
    assert (places.size - bare.size) >> 20 == 4 and (results.size - places.size) >> 20 == 7229
    dispatch, combine = DispatchGemmConfig(problem), GemmCombineConfig(problem)
    assert dispatch.keeps == combine.keeps == Kept.NOTHING
    assert dispatch.replace(tail_sms=8).keeps == Kept.PLACES
    assert combine.replace(interleaved=False).keeps == combine.replace(scatter=False).keeps == Kept.RESULTS


def test_gigabytes_of_the_docs() -> None:
    """The table of docs/howto/own_activation.md, of eight ranks."""
    text = (Path(__file__).parents[2] / "docs" / "howto" / "own_activation.md").read_text()
    table = re.findall(r"^\| ([\w-]+), (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text.partition("## Memory")[2], re.M)
    for name, tokens, *cells in table:
        moe = PRESETS[name.lower()].problem(int(tokens), recipe="fp8xfp8")
        own = RowActivations.layout(moe).values()
        sizes = [symmetric_buffer(moe).size, symmetric_buffer(moe, Kept.RESULTS).size]
        sizes.append(pool_rows(moe) * 4 * moe.intermediate + sum(dtype.itemsize * math.prod(shape) for dtype, shape in own))
        assert [f"{size / 2**30:.1f}" for size in sizes] == cells, name
    assert len(table) == 6


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8))
def test_experts_begin_at_whole_blocks(rows: list[int]) -> None:
    first = first_rows(rows)
    assert all(one % ROW_BLOCK == 0 for one in first)
    assert all(b - a == padded_rows(count) and 0 <= b - a - count < ROW_BLOCK for a, b, count in zip(first, first[1:], rows, strict=False))


@given(problems(max_hidden=256, max_tokens=256, max_ranks=8), st.data())
def test_any_routing_fits(problem, data) -> None:
    """Rows of experts that some routing gives a rank: as many pairs in all as there can be, none more than all tokens."""
    tokens = problem.num_ranks * problem.max_tokens_per_rank
    left = tokens * problem.max_experts_per_token
    rows = []
    for _ in range(problem.experts_per_rank):
        rows.append(data.draw(st.integers(0, min(tokens, left))))
        left -= rows[-1]
    assert first_rows(rows)[-1] <= pool_rows(problem) and torch.tensor(rows).max() <= send_capacity(problem) * problem.num_ranks
