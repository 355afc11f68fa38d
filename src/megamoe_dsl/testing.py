"""Hypothesis strategies for problems and configurations, and checks of kernels in the simulator.

Every strategy shrinks towards its least interesting value, named in its docstring.  Imports neither torch nor cutlass.

    @given(problems())             def test_layout(problem): ...
    @given(configs())              def test_plan(config): ...          of either architecture; configs_sm100(), configs_sm90() of one

    def test_kernel(): check_schedules(host_function, x, y); assert (y == x).all()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("megamoe_dsl.testing needs hypothesis: pip install 'megamoe_dsl[testing]'", name=error.name) from error

from .blocks.sm100.pair_stage import block_ks
from .hardware.cta_pair import CLUSTER
from .kernels.moe.config import MegaMoeConfig
from .kernels.moe.sm90.config import NUM_SMS, Sm90Config, cluster_sizes
from .kernels.moe.sm100.choose import tiers_of
from .kernels.moe.sm100.config import Sm100Config, store_block_ms
from .layouts.region import deepest_ring
from .problem import CHANNEL_STEP, MAX_RANKS, MAX_TOPK, Problem
from .recipe import COMBINE

if TYPE_CHECKING:
    from .sim import Report


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_hidden: int = 7168,
    max_intermediate: int = 4096,
    max_experts_per_rank: int = 64,
    max_topk: int = MAX_TOPK,
    max_ranks: int = MAX_RANKS,
    max_tokens: int = 2048,
    whole_tiles: bool = True,
) -> Problem:
    """Valid problems; with `whole_tiles` channels fill whole tiles.  Shrinks to hidden 256 (32), intermediate 128 (32), one expert, top-1,
    one rank, one token, no clamp."""
    activation, clamp = draw(st.sampled_from((("silu", None), ("silu", 7.0), ("silu", 10.0), ("swigluoai", 7.0), ("situ", None))))
    hidden_step, intermediate_step = (256, 128) if whole_tiles else (CHANNEL_STEP, CHANNEL_STEP)
    ranks = draw(st.integers(1, max_ranks))
    local = draw(st.integers(1, max_experts_per_rank))
    return Problem(
        hidden=hidden_step * draw(st.integers(1, max_hidden // hidden_step)),
        intermediate=intermediate_step * draw(st.integers(1, max_intermediate // intermediate_step)),
        num_experts=ranks * local,
        topk=draw(st.integers(1, min(max_topk, ranks * local))),
        num_ranks=ranks,
        max_tokens_per_rank=draw(st.integers(1, max_tokens)),
        activation=activation,
        activation_clamp=clamp,
        fast_math=draw(st.booleans()),
    )


def formats(recipes: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Fields `recipe` and `combine` of a problem.  Shrinks to the first recipe and to BF16 results."""
    return st.fixed_dictionaries({"recipe": st.sampled_from(recipes), "combine": st.sampled_from(tuple(COMBINE))})


@st.composite
def configs_sm100(draw: st.DrawFn, problem: st.SearchStrategy[Problem] | None = None, *, max_sms: int = 148) -> Sm100Config:
    """Valid configurations of any tier, whatever the heuristics would choose.  Shrinks to the shrunk problem with the recipe fp8xfp4, the
    smallest tier (block_m 16), a lookahead of one expert, one cluster, and the deepest ring."""
    moe = replace(draw(problems() if problem is None else problem), **draw(formats(Sm100Config.recipes)))
    tier = draw(st.sampled_from(tiers_of(moe)))
    config = Sm100Config(
        moe,
        tier.block_m,
        store_block_m=draw(st.sampled_from([m for m in store_block_ms(moe) if tier.block_m % m == 0])),
        epilogue_warpgroups=draw(st.sampled_from((1, 2))),
        lookahead=draw(st.integers(1, moe.experts_per_rank)),
        num_sms=CLUSTER * draw(st.integers(1, max_sms // CLUSTER)),
        block_k=draw(st.sampled_from(block_ks(moe.formats, moe.hidden, moe.intermediate))),
    )
    deepest = deepest_ring(config)
    return config.replace(num_stages=draw(st.sampled_from((0, *range(2, deepest + 1)))))


@st.composite
def configs_sm90(draw: st.DrawFn, problem: st.SearchStrategy[Problem] | None = None, *, max_sms: int = NUM_SMS) -> Sm90Config:
    """Valid configurations for SM90, in any of its recipes.  Shrinks to the shrunk problem, tiles of 8 tokens, a lookahead of one expert,
    two CTAs on their own, and the deepest ring."""
    moe = replace(draw(problems(whole_tiles=False) if problem is None else problem), **draw(formats(Sm90Config.recipes)))
    block_m = draw(st.sampled_from(Sm90Config.tiles_of(moe)))
    num_sms = draw(st.integers(2, max_sms))
    return Sm90Config(
        moe,
        block_m,
        draw(st.integers(1, moe.experts_per_rank)),
        num_sms,
        draw(st.sampled_from((0, 2))),
        draw(st.sampled_from(cluster_sizes(moe, block_m, num_sms))),
    )


def configs(problem: st.SearchStrategy[Problem] | None = None, *, max_sms: int = NUM_SMS) -> st.SearchStrategy[MegaMoeConfig]:
    return st.one_of(configs_sm100(problem, max_sms=max_sms), configs_sm90(problem, max_sms=max_sms))


def assert_no_findings(report: Report) -> None:
    """AssertionError with the findings of a simulated run, if it has any."""
    assert not report.findings, str(report)


def check_schedules(function_or_ptx: Callable[..., Any] | str, *arguments: Any, seeds: Iterable[int] = range(3), **options: Any) -> Report:
    """Runs a kernel under several seeds, each time from the present contents of its arrays; `options` as `sim.run` has them.

    Returns the last report; the arrays hold the last result.  AssertionError when a run has findings, or when an array ends with other
    bytes than under the seed before.  Raises as `sim.run` does, and ValueError without seeds.
    """
    from .sim import arrays_of, run  # with numpy, which strategies do without

    arrays = arrays_of(arguments, options.get("buffers", ()))
    before = [one.copy() for one in arrays]
    report: Report | None = None
    results: list[Any] = []
    for seed in seeds:
        for array, contents in zip(arrays, before, strict=True):
            array[...] = contents
        report = run(function_or_ptx, *arguments, seed=seed, **options)
        assert_no_findings(report)
        previous, results = results, [one.copy() for one in arrays]
        for place, (one, other) in enumerate(zip(results, previous or results, strict=True)):
            assert one.tobytes() == other.tobytes(), f"array {place} depends on the schedule: seed {seed} gives another result"
    if report is None:
        raise ValueError("seeds: must name one seed at least")
    return report
