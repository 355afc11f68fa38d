"""The kernel that makes routing tables, on simulated ranks: every table is numpy's, race detector on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ep_runs import check_report
from hypothesis import given, settings
from hypothesis import strategies as st

from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import random_weights
from megamoe_dsl.cases.routing import draw_experts
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.device.sync import Reached32
from megamoe_dsl.kernels.moe.halves.config import DispatchGemmConfig, RoutingTablesConfig
from megamoe_dsl.kernels.moe.halves.layouts.symmetric import first_rows, symmetric_buffer
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.runtime.ep.buffers import EpBuffers
from megamoe_dsl.runtime.simulated import WATCHDOG_NS
from megamoe_dsl.runtime.watchdog import WatchdogError
from megamoe_dsl.sim import Simulator
from ptx_of import artifact
from simulated_tables import simulate_tables
from sweep import rarely

MADE = ("splits", "pulls", "cta_counts", "pair_rows", "send_pairs", "recv_pairs", "expert_rows")
OPTIONS = [(saving, sorting) for saving in (True, False) for sorting in (True, False)]
SHAPES = {
    "six slots of eight experts": (8, 6, 2, 200),
    "as many slots as experts of a rank": (6, 2, 3, 9),
    "one slot": (12, 1, 4, 40),
    "more slots than half a warp": (20, 17, 1, 3),
    "more tokens of a warp than it sorts at a time": (10, 8, 2, 200),
    "three CTAs": (20, 17, 2, 300),
}
UNTOUCHED = -7


@cache
def problem(shape: str) -> Problem:
    experts, topk, ranks, tokens = SHAPES[shape]
    return Problem(256, 128, num_experts=experts, topk=topk, num_ranks=ranks, max_tokens_per_rank=tokens, recipe="fp8xfp8")


def ranks_with(moe: Problem, idx: Sequence[torch.Tensor]) -> list[EpBuffers]:
    """Symmetric buffers with these experts."""
    ranks = [EpBuffers(moe, random_weights(moe, 0, 0)) for _ in idx]
    give(ranks, idx)
    return ranks


def give(ranks: Sequence[EpBuffers], idx: Sequence[torch.Tensor]) -> None:
    """Buffers get these experts; what the kernel makes holds numbers that it must replace."""
    for one, experts in zip(ranks, idx, strict=True):
        for name in MADE:
            one.view(name).fill_(UNTOUCHED)
        one.view("topk_idx")[: len(experts)] = experts


def check_tables(moe: Problem, ranks: Sequence[EpBuffers], idx: Sequence[torch.Tensor], saving: bool, sorting: bool) -> None:
    """Against numpy: all pairs sorted by (expert, rank, token) give the rows, those whose tokens travel the lists."""
    local, topk = moe.experts_per_rank, moe.topk
    named = [(e, r, t, s) for r, one in enumerate(idx) for t, row in enumerate(one.tolist()) for s, e in enumerate(row)]
    pairs = np.array([one for one in named if 0 <= one[0] < moe.num_experts], dtype=np.int64).reshape(-1, 4)
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    counts = np.bincount(pairs[:, 0], minlength=moe.num_experts).reshape(moe.num_ranks, local)
    first = np.array([first_rows(one.tolist())[:-1] for one in counts]).ravel()
    index = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
    rows = [np.full(tuple(one.shape), -1) for one in idx]
    for (e, r, t, s), place in zip(pairs, index, strict=True):
        rows[r][t, s] = first[e] + place
    leads = pairs
    if saving:
        _, kept = np.unique(np.stack([pairs[:, 0] // local, pairs[:, 1], pairs[:, 2]]), axis=1, return_index=True)
        leads = pairs[np.sort(kept)]
    if not sorting:
        leads = leads[np.lexsort((leads[:, 3], leads[:, 2], leads[:, 1]))]
    for rank, (buffers, experts) in enumerate(zip(ranks, idx, strict=True)):
        made = buffers.tables(len(experts))
        np.testing.assert_array_equal(made.pair_rows, rows[rank])
        np.testing.assert_array_equal(made.expert_rows, counts[rank])
        for owner in range(moe.num_ranks):
            mine = leads[(leads[:, 1] == rank) & (leads[:, 0] // local == owner)]
            assert ranks[owner].tables(0).recv_pairs[rank] == len(mine)
            np.testing.assert_array_equal(made.send_pairs[owner, : len(mine)], mine[:, 2] * topk + mine[:, 3])
            assert (made.send_pairs[owner, len(mine) :] == UNTOUCHED).all()


def run(shape: str, idx: Sequence[torch.Tensor], saving: bool, sorting: bool, launches: int = 1, seed: int = 0) -> None:
    """Launches without a pause, and their tables."""
    moe = problem(shape)
    run_kernel(artifact(RoutingTablesConfig(moe, saving, sorting)), shape, idx, launches, seed)


def run_kernel(
    made: Artifact,
    shape: str,
    idx: Sequence[torch.Tensor],
    launches: int,
    seed: int,
    watchdog_ns: int = WATCHDOG_NS,
    before: Sequence[Sequence[torch.Tensor]] = (),
) -> None:
    """The same of a compiled kernel, after launches with other tokens, each of which makes its own tables."""
    moe, config, count = problem(shape), made.config, 0
    ranks = ranks_with(moe, idx)
    for experts, repeated in [*((one, 1) for one in before), (idx, launches)]:
        give(ranks, experts)
        tokens, count = [len(one) for one in experts], count + repeated
        check_report(simulate_tables(made, ranks, tokens, launches=repeated, seed=seed, watchdog_ns=watchdog_ns))
        check_tables(moe, ranks, experts, config.token_saving, config.token_sorting)
        assert all(one.view("launch_epoch").tolist() == [0, 0, count] for one in ranks)


@st.composite
def routed(draw: st.DrawFn) -> tuple[str, list[torch.Tensor]]:
    """A shape, and experts of tokens: of all, of few or of no experts, dropped pairs, what names no expert, ranks without a token."""
    shape = draw(st.sampled_from(list(SHAPES)))
    moe, seed, mask = problem(shape), draw(st.integers(0, 1 << 20)), draw(st.sampled_from((0.0, 0.3, 1.0)))
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(moe.num_experts, generator=generator) * draw(st.sampled_from((0.0, 5.0)))
    counts = [draw(st.integers(0, moe.max_tokens_per_rank)) for _ in range(moe.num_ranks)]
    idx = [draw_experts(moe, count, bias, generator, mask) for count in counts]
    for one in idx:
        one[one == -1] = draw(st.sampled_from((-1, moe.num_experts, 1 << 40)))
    return shape, idx


@settings(max_examples=3, deadline=None)
@given(routed(), st.sampled_from(OPTIONS), st.integers(0, 3))
def test_tables_are_numpys(drawn: tuple[str, list[torch.Tensor]], options: tuple[int, bool], seed: int) -> None:
    run(*drawn, *options, seed=seed)


@pytest.mark.sweep
@settings(max_examples=30, deadline=None)
@given(routed(), st.sampled_from(OPTIONS), st.integers(0, 3))
def test_tables_of_more_examples(drawn: tuple[str, list[torch.Tensor]], options: tuple[int, bool], seed: int) -> None:
    run(*drawn, *options, seed=seed)


@pytest.mark.parametrize(("saving", "sorting"), [(True, True), rarely(False, False), rarely(False, True)])
def test_launches_without_a_pause(saving: bool, sorting: bool) -> None:
    """A rank may be in its next launch while another reads what it was told in this one.  A warp takes several turns."""
    shape = "six slots of eight experts"
    moe = problem(shape)
    idx = [draw_experts(moe, count, torch.zeros(moe.num_experts), torch.Generator().manual_seed(count), 0.2) for count in (200, 4)]
    run(shape, idx, saving, sorting, launches=3, seed=5)


def several_ctas(*counts: int) -> list[torch.Tensor]:
    """Experts of so many tokens of each rank; CTAs of "three CTAs" sort 128 in a turn."""
    moe, generator = problem("three CTAs"), torch.Generator().manual_seed(0)
    return [draw_experts(moe, count, torch.zeros(moe.num_experts), generator, 0.2) for count in counts]


@pytest.mark.parametrize(
    ("counts", "saving", "sorting"),
    [
        ((257, 3), True, True),
        rarely((129, 0), True, True),
        rarely((128, 300), True, False),
        rarely((1, 256), False, True),
        rarely((256, 129), False, False),
    ],
    ids=str,
)
def test_several_ctas_make_the_tables_that_one_makes(counts: tuple[int, int], saving: bool, sorting: bool) -> None:
    """So many as have a turn; launches follow one another without a pause."""
    run("three CTAs", several_ctas(*counts), saving, sorting, launches=2, seed=3)


@pytest.mark.parametrize("before", [((1, 129), (0, 0)), rarely(((300, 300), (1, 1)))], ids=str)
def test_launches_of_fewer_ctas_leave_nothing_behind(before: tuple[tuple[int, int], ...]) -> None:
    """A CTA without a turn is counted as one that was there."""
    made = artifact(RoutingTablesConfig(problem("three CTAs")))
    run_kernel(made, "three CTAs", several_ctas(300, 129), 1, 0, before=[several_ctas(*counts) for counts in before])


@pytest.mark.parametrize(
    ("topk", "tokens", "ctas"),
    [
        (8, 512, 1),
        (8, 513, 2),
        (8, 4096, 8),
        (8, 16384, 32),
        (8, 65536, 32),
        (6, 640, 1),
        (6, 641, 2),
        (1, 4096, 1),
        (17, 129, 2),
    ],
)
def test_a_cta_sorts_the_tokens_of_a_turn_and_32_make_tables_at_most(topk: int, tokens: int, ctas: int) -> None:
    moe = Problem(256, 128, num_experts=64, topk=topk, max_tokens_per_rank=tokens, recipe="fp8xfp8")
    assert RoutingTablesConfig(moe).num_sms == ctas
    assert symmetric_buffer(moe)["cta_counts"].field.shape == (32, 2, 64)


def test_a_rank_that_is_told_of_the_next_launch_too_goes_on() -> None:
    """Another one may be in it before this one has looked."""
    assert [Reached32(0, 4, "sys").met(signals) for signals in (2, 3, 4, 5)] == [False, False, True, True]  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [2**30 - 1, rarely(2**31 - 1), rarely(2**32 - 1)])
def test_counters_that_wrap(before: int) -> None:
    """After so many launches: of ranks, past the last positive number, or of launches, past the last one of all."""
    moe, idx = problem("three CTAs"), several_ctas(129, 1)
    ranks = ranks_with(moe, idx)
    for one in ranks:
        for name, arrivals in (("launch_epoch", 1), ("rank_signal", len(ranks)), ("grid_arrivals", 3)):
            one.view(name).view(torch.int32)[:] = int(np.int64(before * arrivals).astype(np.int32))
    check_report(simulate_tables(artifact(RoutingTablesConfig(moe)), ranks, [129, 1], watchdog_ns=1_000_000))
    check_tables(moe, ranks, idx, True, True)


def test_a_rank_that_stays_away_is_named() -> None:
    moe = problem("six slots of eight experts")
    ranks = ranks_with(moe, [torch.zeros(0, 6, dtype=torch.int64)] * 2)
    run_all = Simulator.run
    with (
        patch.object(Simulator, "run", lambda self, launches: run_all(self, launches[:1])),
        pytest.raises(WatchdogError, match=r"rank 0, SM 0, routing tables: wait RANK \(rank barrier SPLITS\) exceeded its limit"),
    ):
        simulate_tables(artifact(RoutingTablesConfig(moe, token_saving=False)), ranks, [0, 0], watchdog_ns=10_000)


def test_bad_fields_are_named() -> None:
    moe = problem("one slot")
    with pytest.raises(ConfigError, match=r"token_sorting = 1: must be True or False"):
        RoutingTablesConfig(moe, token_sorting=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"token_saving = 4: must be True or False"):
        RoutingTablesConfig(moe, 4)
    with pytest.raises(ConfigError, match=r"problem\.num_experts = 1024: must be at most \d+"):
        RoutingTablesConfig(Problem(256, 128, num_experts=1024, topk=4, recipe="fp8xfp8"))
    dispatch = DispatchGemmConfig(moe, 64, 64, token_saving=False)
    assert RoutingTablesConfig.of(dispatch) == RoutingTablesConfig(moe, token_saving=False)
    with pytest.raises(ProblemError, match=r"artifact = 'DispatchGemmConfig': must be an Artifact of a RoutingTablesConfig"):
        simulate_tables(artifact(dispatch), [], [])
