"""Problem: every constraint names field, value and what is allowed; derived quantities."""

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from drawn_routings import MASKED, routings, worst_routing
from megamoe_dsl import Sm90Config, Sm100Config
from megamoe_dsl.kernels.moe.layouts.symmetric import padded_sf_rows, pool_tokens
from megamoe_dsl.problem import MAX_RANKS, MAX_TOPK, Problem, ProblemError
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.testing import configs, configs_sm90, configs_sm100, problems

GOOD = Problem(hidden=512, intermediate=256, num_experts=32, topk=6, num_ranks=4, max_tokens_per_rank=64)

REJECTED = [
    *(
        (field, value, "a positive integer")
        for field in ("hidden", "intermediate", "num_experts", "topk")
        for value in (0, -8, 1.0, True, "8")
    ),
    *((field, value, "a positive integer") for field in ("num_ranks", "max_tokens_per_rank") for value in (0, -1, 2.0, False, None)),
    ("hidden", 80, "a multiple of 32"),
    ("hidden", 2880 + 16, "a multiple of 32"),
    ("hidden", (1 << 18) + 32, "at most 262144"),
    ("intermediate", 48, "a multiple of 32"),
    ("intermediate", 16384 + 32, "at most 16384"),
    ("num_ranks", MAX_RANKS * 2, "at most 128"),
    ("num_experts", 34, "a multiple of num_ranks = 4"),
    ("topk", MAX_TOPK + 1, "at most 32"),
    ("max_tokens_per_rank", -(-(1 << 27) // 24), "less than 2^27 / 24: pool rows are counted in 32 bits"),
    ("recipe", None, ", ".join(RECIPES)),
    *(
        ("activation_clamp", value, "None or a number between 2^-126 and 1e+15")
        for value in (0.0, -1.0, 2.0**-127, 1e16, 10**400, math.inf, math.nan, "7", True)
    ),
    *(("activation", value, "one of silu, swigluoai, situ") for value in ("swiglu", "gelu", None)),
    *((field, "yes", "True or False") for field in ("fast_math", "biases", "weigh_results")),
    *(("combine", value, "bf16 or e4m3") for value in ("e2m1", "fp8", ["bf16"], None)),
]


@pytest.mark.parametrize(("field", "value", "allowed"), REJECTED)
def test_constraint_names_field_value_and_what_is_allowed(field, value, allowed):
    with pytest.raises(ProblemError) as caught:
        replace(GOOD, **{field: value})
    error = caught.value
    assert error.field == field and allowed in error.allowed
    assert error.value is value or error.value == value
    assert field in str(error) and repr(value)[:400] in str(error) and allowed in str(error)
    assert isinstance(error, ValueError)


def least_of(strategy):
    """What a strategy draws first."""
    found = []

    @settings(max_examples=1, database=None, phases=[Phase.generate])
    @given(strategy)
    def draw(one):
        found.append(one)

    draw()
    return found[0]


def test_strategies_shrink_to_what_is_least_interesting():
    least = Problem(256, 128, 1, 1, num_ranks=1, max_tokens_per_rank=1, fast_math=False)
    assert least_of(problems()) == least
    small = replace(least, hidden=32, intermediate=32)
    assert least_of(problems(whole_tiles=False)) == small
    assert (
        least_of(configs_sm100())
        == least_of(configs())
        == Sm100Config(least, 16, store_block_m=16, epilogue_warpgroups=1, lookahead=1, num_sms=2)
    )
    assert least_of(configs_sm90()) == Sm90Config(replace(small, recipe="fp8xfp8"), 8, 1, 2, 0, 1)


@settings(max_examples=50, database=None)
@given(problems())
def test_problems_are_no_larger_than_is_said(problem):
    assert problem.hidden <= 7168 and problem.intermediate <= 4096 and problem.experts_per_rank <= 64
    assert problem.topk <= 32 and problem.num_ranks <= 128 and problem.max_tokens_per_rank <= 2048


def test_a_rank_receives_a_token_once_for_each_of_its_experts_at_most():
    """With one expert a rank there are fewer copies of a token than top-k times ranks."""
    most = (1 << 27) // 8 - 1
    assert replace(GOOD, num_ranks=8, num_experts=8, topk=6, max_tokens_per_rank=most).max_tokens_per_rank == most
    with pytest.raises(ProblemError, match=r"less than 2\^27 / 8"):
        replace(GOOD, num_ranks=8, num_experts=8, topk=6, max_tokens_per_rank=most + 1)


def test_topk_is_bounded_by_the_experts():
    with pytest.raises(ProblemError, match=r"topk = 6: must be at most num_experts = 4"):
        replace(GOOD, num_experts=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", 32),
        ("hidden", 1 << 18),
        ("intermediate", 32),
        ("intermediate", 16384),
        ("topk", 32),
        ("num_ranks", 32),
        ("max_tokens_per_rank", 1),
        ("activation_clamp", 7),
        ("activation_clamp", 10.0),
        ("activation_clamp", 2.0**-126),
        ("activation_clamp", 1e15),
        ("fast_math", False),
    ],
)
def test_edges_are_allowed(field, value):
    assert getattr(replace(GOOD, **{field: value}), field) == value


def test_symmetric_buffer_rows_stay_countable_in_32_bits():
    """8 scale words per pool row in the smallest tier: row numbers of the pool must leave 3 bits of an i32 free."""
    with pytest.raises(ProblemError, match=r"max_tokens_per_rank = 4194304: .*pool rows"):
        Problem(256, 128, 64, 32, num_ranks=1, max_tokens_per_rank=1 << 22)
    largest = Problem(256, 128, 2048, 32, num_ranks=1, max_tokens_per_rank=(1 << 22) - 1)
    rows = pool_tokens(largest)
    assert rows * largest.topk > 1 << 31 > padded_sf_rows(rows, largest.formats) > rows


def test_activations_have_their_own_clamp():
    """gpt-oss's is 7 and may be another, tanh takes the place of one."""
    assert replace(GOOD, activation="swigluoai").activation_clamp == 7.0
    assert replace(GOOD, activation="swigluoai", activation_clamp=5).activation_clamp == 5.0
    assert replace(GOOD, activation="situ").activation_clamp is None
    with pytest.raises(ProblemError, match=r"activation_clamp = 10.0: must be None: situ limits gate and up itself"):
        replace(GOOD, activation="situ", activation_clamp=10.0)


def test_frozen_and_hashable():
    with pytest.raises(FrozenInstanceError):
        GOOD.hidden = 1024
    assert len({GOOD, replace(GOOD), replace(GOOD, topk=5)}) == 2


RANGE = "between 0 and max_tokens_per_rank = 64"


@pytest.mark.parametrize(("value", "allowed"), [(-1, RANGE), (65, RANGE), *((one, "an integer") for one in (1.0, 1.5, True, None))])
def test_num_tokens_out_of_range(value, allowed):
    with pytest.raises(ProblemError, match=f"must be {allowed}$") as caught:
        GOOD.check_num_tokens(value, "tokens[3]")
    assert (caught.value.field, caught.value.value) == ("tokens[3]", value)


@pytest.mark.parametrize("given", [None, iter((1, 2)), [1], [1, 2, 3], {}])
def test_there_is_one_for_every_rank(given):
    two = replace(GOOD, num_ranks=2, num_experts=2 * GOOD.num_experts)
    with pytest.raises(ProblemError, match=r"^(len\(inputs\)|inputs) = .*: must be .*num_ranks = 2$"):
        two.check_ranks("inputs", given)
    two.check_ranks("inputs", (1, 2))


@pytest.mark.parametrize("value", [0, 1, 64])
def test_num_tokens_in_range(value):
    GOOD.check_num_tokens(value)


@settings(max_examples=80)
@given(problems(), st.data())
def test_derived_quantities(problem, data):
    assert problem.experts_per_rank * problem.num_ranks == problem.num_experts
    assert 1 <= problem.max_experts_per_token <= min(problem.topk, problem.experts_per_rank)
    tokens = data.draw(st.integers(0, problem.max_tokens_per_rank))
    problem.check_num_tokens(tokens)
    # Uniform routing conserves slots: what all ranks send is what all experts receive.
    assert math.isclose(problem.expected_tokens_per_expert(tokens) * problem.num_experts, tokens * problem.num_ranks * problem.topk)


@settings(max_examples=80)
@given(st.data())
def test_routings_are_valid(data):
    problem = data.draw(problems(max_experts_per_rank=16, max_ranks=4, max_topk=8))
    routing = data.draw(routings(problem))
    assert len(routing.topk_idx) == problem.num_ranks
    assert all(0 <= n <= problem.max_tokens_per_rank for n in routing.num_tokens)
    for tokens in routing.topk_idx:
        for slots in tokens:
            named = [expert for expert in slots if expert != MASKED]
            assert len(slots) == problem.topk and len(set(named)) == len(named)
            assert all(0 <= expert < problem.num_experts for expert in named)
            assert sum(expert // problem.experts_per_rank == 0 for expert in named) <= problem.max_experts_per_token
    assert sum(sum(routing.received(r)) for r in range(problem.num_ranks)) == len(list(routing.entries()))


def test_worst_routing_sends_everything_to_one_rank():
    problem = replace(GOOD, max_tokens_per_rank=5)
    received = [sum(worst_routing(problem, 2).received(rank)) for rank in range(4)]
    assert received == [0, 0, 4 * 5 * 6, 0]


def test_import_is_light():
    code = (
        "import sys, megamoe_dsl, megamoe_dsl.testing, megamoe_dsl.schedule\n"
        "import megamoe_dsl.kernels.moe.layouts.symmetric, megamoe_dsl.kernels.moe.sm100.memory_plan\n"
        "assert megamoe_dsl.Problem and megamoe_dsl.Sm100Config and 'TIERS' in dir(megamoe_dsl)\n"
        "assert not {'torch', 'cutlass', 'numpy'} & set(sys.modules), set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_public_name():
    import megamoe_dsl

    with pytest.raises(AttributeError, match="has no attribute 'Kernel'"):
        megamoe_dsl.Kernel  # noqa: B018
