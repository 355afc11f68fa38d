"""Hypothesis strategies for problems, configurations and layouts, and checks of kernels in the simulator.

Imports neither torch nor cutlass.

Every strategy shrinks towards its least interesting value, named in its docstring, so a failing example is minimal in each field.

    @given(problems())             def test_layout(problem): ...
    @given(configs())              def test_plan(config): ...          of either architecture; configs_sm100(), configs_sm90() of one
    @given(layouts("bijective"))   def test_inverse(layout): ...

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

from .hardware.cta_pair import CLUSTER
from .kernels.moe.config import MegaMoeConfig
from .kernels.moe.sm90.config import NUM_SMS, Sm90Config, cluster_sizes, tiles_of
from .kernels.moe.sm100.choose import tiers_of
from .kernels.moe.sm100.config import Sm100Config, block_ks, store_block_ms
from .layouts.algebra import IntTuple, Layout, unflatten
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
    """Valid problems, of channels that fill `whole_tiles` or of any.  Shrinks to hidden 256 (32), intermediate 128 (32), one expert, top-1,
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
    """Fields of a problem that say its number formats.  Shrinks to the first of the recipes, and to results that travel as BF16."""
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
        block_k=draw(st.sampled_from(block_ks(moe))),
    )
    deepest = config.smem_plan(1).max_stages(config.arch.smem_bytes)
    return config.replace(num_stages=draw(st.sampled_from((0, *range(2, deepest + 1)))))


@st.composite
def configs_sm90(draw: st.DrawFn, problem: st.SearchStrategy[Problem] | None = None, *, max_sms: int = NUM_SMS) -> Sm90Config:
    """The same for SM90; the problem's recipe become fp8xfp8.  Shrinks to the shrunk problem, tiles of 8 tokens, a lookahead of one expert,
    two CTAs on their own, and the deepest ring."""
    moe = replace(draw(problems(whole_tiles=False) if problem is None else problem), **draw(formats(Sm90Config.recipes)))
    block_m = draw(st.sampled_from(tiles_of(moe)))
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


LAYOUT_KINDS = ("any", "nested", "bijective")


@st.composite
def layouts(
    draw: st.DrawFn, kind: str = "any", *, max_size: int = 128, extents: tuple[int, ...] = (1, 2, 3, 4, 6, 8), flat: bool = False
) -> Layout:
    """Layouts of up to five leaves and two levels of nesting, with at most `max_size` coordinates.

    any        strides of 0 to 64, so indices may coincide
    nested     injective: leaves in any order, each stride a multiple of what the smaller leaves span (complement and left inverse exist)
    bijective  nested without gaps: a permutation of [0, size)

    `extents` are the leaf extents to draw from; powers of two make every composition defined.  `flat` leaves out the nesting.
    Shrinks to 1:0 (any) or 1:1, then towards fewer, smaller, column-major leaves.  Raises ValueError for an unknown kind.
    """
    if kind not in LAYOUT_KINDS:
        raise ValueError(f"kind = {kind!r}: must be one of {', '.join(LAYOUT_KINDS)}")
    leaves: list[int] = []
    room = max_size
    for _ in range(draw(st.integers(1, 5))):
        leaves.append(draw(st.sampled_from([n for n in sorted(extents) if n <= room])))
        room //= leaves[-1]
    strides = [0] * len(leaves)
    if kind == "any":
        strides = [draw(st.integers(0, 64)) for _ in leaves]
    else:
        span = 1
        for leaf in draw(st.permutations(range(len(leaves)))):
            strides[leaf] = span * (draw(st.sampled_from(sorted({1, *extents}))) if kind == "nested" else 1)
            span = strides[leaf] * leaves[leaf]
    profile = tuple(range(len(leaves))) if flat else draw(_profiles(len(leaves)))
    return Layout(unflatten(leaves, profile), unflatten(strides, profile))


@st.composite
def _profiles(draw: st.DrawFn, leaves: int, depth: int = 2) -> IntTuple:
    """Ways to nest a number of leaves.  Shrinks to no nesting at all (a bare leaf where there is one)."""
    if leaves == 1:
        return 0
    parts: list[IntTuple] = []
    while leaves:
        width = draw(st.integers(1, leaves if parts else leaves - 1)) if depth else 1
        parts.append(draw(_profiles(width, depth - 1)))
        leaves -= width
    return tuple(parts)


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
