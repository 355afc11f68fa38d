"""Sm100Config: heuristics at the article's numbers, every constraint, and the budgets of the published shapes."""

import pickle
from dataclasses import replace
from math import inf, nextafter, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.arch import REGISTER_FILE, SM100, SMEM_BYTES
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.layouts.symmetric import CANDIDATE_BLOCK_M, symmetric_buffer, whole_pool
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe.sm100.choose import TIERS, choose_fields, choose_lookahead
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.kernels.registry import kernel_of
from megamoe_dsl.layouts.region import deepest_ring
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant.weights import checkpoint_layout
from megamoe_dsl.testing import configs_sm100, problems

FLASH = Problem(4096, 2048, 256, 6, num_ranks=8, max_tokens_per_rank=32768)
H200 = Target.typical("sm_90a")
FLASH_FP8 = replace(FLASH, recipe="fp8xfp8")
PRO = Problem(7168, 3072, 384, 6, num_ranks=8, max_tokens_per_rank=32768)
EVERY_TIER = pytest.mark.parametrize("block_m", [tier.block_m for tier in TIERS])
BOTH_SHAPES = pytest.mark.parametrize("problem", [FLASH, PRO], ids=["flash", "pro"])


# --- tiers (MEGAMOE_FACTS; article 3.2.1.1)
def test_tier_table():
    assert [(t.max_expected, t.block_m, t.epilogue_warpgroups) for t in TIERS] == [
        (approx(9.754, abs=1e-3), 16, 2),
        (approx(22.511, abs=1e-3), 32, 2),
        (approx(49.875, abs=1e-3), 64, 1),
        (approx(78.302, abs=1e-3), 96, 2),
        (96.5, 128, 2),
        (inf, 192, 2),
    ]
    assert all(t.store_block_m <= t.block_m and t.block_m % t.store_block_m == 0 for t in TIERS)


@pytest.mark.parametrize(
    ("num_tokens", "expected", "block_m"),
    [
        (0, 0, 16),
        (19, 9.5, 16),
        (20, 10, 32),
        (45, 22.5, 32),
        (46, 23, 64),
        (96, 48, 64),
        (99, 49.5, 64),
        (100, 50, 96),
        (156, 78, 96),
        (157, 78.5, 128),
        (193, 96.5, 128),
        (194, 97, 192),
        (32768, 16384, 192),
    ],
)
def test_tier_edges(num_tokens, expected, block_m):
    """8 ranks, top-8 of 128 experts: half a token per expert for every token of a rank.  Up to 96 the smallest tile that holds the expected
    tokens and two standard deviations more."""
    problem = Problem(4096, 2048, 128, 8, num_ranks=8, max_tokens_per_rank=32768)
    assert problem.expected_tokens_per_expert(num_tokens) == expected
    assert choose_fields(problem, expected, None, 148)["block_m"] == block_m
    assert choose(problem, Target.typical("sm_100a"), num_tokens).block_m == block_m


def test_expected_tokens_are_not_rounded():
    """6 * 8 / 256 of 53 tokens is 9.9375: an integer division would stay in the smallest tier."""
    assert choose(FLASH, Target.typical("sm_100a"), 52).block_m == 16
    assert choose(FLASH, Target.typical("sm_100a"), 53).block_m == 32
    assert nextafter(9.75, inf) < TIERS[0].max_expected < 9.76


# --- how far Linear1 is ahead (article 3.2.1.3)
def lookahead(experts=32, expected=256.0, *, intermediate=2048, block_m=128, num_sms=148):
    return choose_lookahead(Problem(512, intermediate, experts, 1), expected, block_m, num_sms)


def test_lead_of_the_worked_example():
    """1024 tokens of top-8 for 32 experts."""
    assert lookahead() == 8


@pytest.mark.parametrize(("least", "rounded"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 12), (12, 12)])
def test_lead_rounds_up_to_a_power_of_two_or_all(least, rounded):
    """12 experts with 2 Linear1 blocks each on `least` SMs: 2 * least / 2 = `least` experts before rounding."""
    assert lookahead(12, 1.0, intermediate=128, num_sms=least) == rounded


def test_lead_is_all_experts_below_one_token_each():
    assert lookahead(expected=24 / 32) == lookahead(expected=0.0) == 32
    assert lookahead(expected=1.0) < 32


def test_lead_is_capped_by_the_experts():
    assert lookahead(2, 1.0, intermediate=128) == 2


@settings(max_examples=80)
@given(problems(), st.sampled_from(TIERS), st.integers(1, 74), st.data())
def test_lead_feeds_the_grid(problem, tier, clusters, data):
    local, num_tokens = problem.experts_per_rank, data.draw(st.integers(0, problem.max_tokens_per_rank))
    expected = problem.expected_tokens_per_expert(num_tokens)
    chosen = choose_lookahead(problem, expected, tier.block_m, 2 * clusters)
    assert chosen == local or (chosen.bit_count() == 1 and chosen < local)
    m_blocks = next(n for n in range(10**6) if n * tier.block_m >= expected)
    if expected >= 1 and chosen < local:
        assert chosen * m_blocks * (2 * problem.intermediate // 128) >= 2 * 2 * clusters
    if expected >= 1 and chosen > 1:
        smaller = 1 << (chosen - 1).bit_length() - 1
        assert smaller * m_blocks * (2 * problem.intermediate // 128) < 2 * 2 * clusters


# --- pool (article 3.2.1.2)
def test_pool_of_the_worked_example():
    """8 ranks * 256 tokens * 8 copies + 32 experts * 191, rounded up to 384."""
    capacity = whole_pool(Problem(256, 128, 256, 8, 8, 256))
    assert capacity == -(-(16384 + 6112) // 384) * 384 == 22656
    assert all(capacity % m == 0 for m in CANDIDATE_BLOCK_M)


def test_pool_counts_local_experts_when_topk_exceeds_them():
    assert whole_pool(Problem(256, 128, 8, 8, 2, 3)) == 3 * 384  # 24 + 764


# --- stages (article 3.2.1.4)
def test_stages_of_the_worked_example():
    problem = Problem(7168, 3072, 256, 8, num_ranks=8, max_tokens_per_rank=1024)
    config = choose(problem, Target.typical("sm_100a"), 1, block_m=128, store_block_m=32)
    assert config.num_stages == 7
    plan = config.smem
    assert plan.region["pull"].field.num_bytes == 4 * 7168  # send buffers
    assert plan.region["cd"].field.num_bytes == 16 * 1024
    assert plan.region["amax"].field.num_bytes == 1024
    assert plan.region["expert_count"].field.num_bytes == 1024
    per_stage = [plan.region[name].field.num_bytes // 7 for name in ("tokens", "weights", "sfa", "sfb", "full_barrier", "empty_barrier")]
    assert per_stage == [8192, 16384, 512, 512, 8, 8]


# --- the published shapes fit
@BOTH_SHAPES
@EVERY_TIER
def test_published_shapes_fit(problem, block_m):
    config = choose(problem, Target.typical("sm_100a", 148), 128, block_m=block_m)
    assert config.num_stages >= 4
    assert config.smem.region.size <= SMEM_BYTES == 232448
    assert config.smem_plan(config.num_stages + 1).region.size > SMEM_BYTES
    assert config.tmem.used <= config.tmem.allocated <= 512
    assert config.register_total <= REGISTER_FILE == 65536
    assert config.num_threads == 256 + 128 * config.epilogue_warpgroups <= 1024
    assert 1 <= config.lookahead <= problem.experts_per_rank
    assert config.sf_block_m == (256 if block_m == 192 else 128)
    assert (config.fc1_n_blocks, config.fc2_n_blocks) == (problem.intermediate // 128, problem.hidden // 256)
    assert (config.fc1_k_blocks, config.fc2_k_blocks) == (problem.hidden // 128, problem.intermediate // 128)


def test_register_budgets():
    small, large = (replace(GOOD, problem=replace(FLASH, num_experts=8 * local)).registers for local in (64, 65))
    assert small == {"dispatch": 48, "loader": 48, "epilogue": 208}
    assert large == {"dispatch": 96, "loader": 88, "epilogue": 160}


@settings(max_examples=80)
@given(configs_sm100())
def test_budgets(config):
    dispatch, loader, epilogue = (config.registers[role] for role in ("dispatch", "loader", "epilogue"))
    for count in (dispatch, loader, epilogue):
        assert count % 8 == 0 and 24 <= count <= 256  # setmaxnreg
    warps = config.num_threads // 32
    assert config.register_total == 32 * (4 * dispatch + 4 * loader + (warps - 8) * epilogue)
    assert config.register_total <= REGISTER_FILE
    assert config.num_clusters * 2 == config.num_sms
    assert config.num_stages >= 2 and config.smem.region.size <= SMEM_BYTES


@settings(max_examples=80)
@given(problems(max_experts_per_rank=128), st.integers(1, 74), st.data())
def test_choose_always_gives_a_valid_config(problem, clusters, data):
    num_tokens = data.draw(st.integers(0, problem.max_tokens_per_rank))
    config = choose(problem, Target.typical("sm_100a", 2 * clusters), num_tokens)
    assert config.block_m == choose_fields(problem, problem.expected_tokens_per_expert(num_tokens), None, 148)["block_m"]
    assert config.num_stages == deepest_ring(config)
    assert config.replace() == config


# --- errors
GOOD = Sm100Config(FLASH, 128, lookahead=8, num_sms=148, num_stages=4, store_block_m=32, epilogue_warpgroups=2)

REJECTED = [
    ("block_m", 8, "one of [16, 32, 64, 96, 128, 192]"),
    ("block_m", 48, "one of [16, 32, 64, 96, 128, 192]"),
    ("store_block_m", 8, "16 or 32 and a divisor of block_m = 128"),
    ("store_block_m", 64, "16 or 32"),
    ("epilogue_warpgroups", 0, "1 or 2"),
    ("epilogue_warpgroups", 3, "1 or 2"),
    ("lookahead", 0, "between 1 and 32, the experts of a rank"),
    ("lookahead", 33, "between 1 and 32, the experts of a rank"),
    ("lookahead", -1, "between 1 and 32, the experts of a rank"),
    ("num_sms", 0, "a positive multiple of 2"),
    ("num_sms", -2, "a positive multiple of 2"),
    ("num_sms", 147, "a positive multiple of 2"),
    ("num_stages", 1, "between 2 and 7"),
    ("num_stages", 8, "between 2 and 7"),
    ("num_stages", -1, "between 2 and 7"),
    *((name, value, "an integer") for name in ("block_m", "lookahead", "num_sms", "num_stages") for value in (16.0, "2", True, None)),
]


@pytest.mark.parametrize("kind", [ConfigError, ProblemError])
def test_an_error_comes_whole_from_another_process(kind: type[ConfigError | ProblemError]) -> None:
    found = pickle.loads(pickle.dumps(kind("block_m", 7, "even")))
    assert type(found) is kind and (found.field, found.value, found.allowed) == ("block_m", 7, "even")
    assert str(found) == "block_m = 7: must be even"


@pytest.mark.parametrize(("field", "value", "allowed"), REJECTED)
def test_constraint_names_field_value_and_what_is_allowed(field, value, allowed):
    with pytest.raises(ConfigError) as caught:
        replace(GOOD, **{field: value})
    error = caught.value
    assert error.field == field and error.value == value and allowed in error.allowed
    assert field in str(error) and repr(value) in str(error) and allowed in str(error)


@pytest.mark.parametrize("field", ["block_m", "lookahead", "num_sms", "num_stages", "cluster"])
@pytest.mark.parametrize("value", [2.0, "2", True, None])
def test_fields_of_sm90_are_integers(field, value):
    good = Sm90Config(FLASH_FP8, 128, 2, 132)
    with pytest.raises(ConfigError, match=f"{field} = {value!r}: must be an integer"):
        good.replace(**{field: value})


@pytest.mark.parametrize(
    ("target", "fields", "message"),
    [
        (H200, {"trace": "no"}, "trace = 'no': must be True or False"),
        (H200, {"trace": 1}, "trace = 1: must be True or False"),
        (H200, {"block_m": "16"}, r"block_m = '16': must be one of \[8, 16, 32, 128\]"),
        (Target(SM90, 132, 5), {}, "gpu = 5: must be None or the name of a GPU"),
        (Target(SM90, "132"), {}, "num_sms = '132': must be an integer"),
    ],
)
def test_choose_of_sm90_checks_what_it_is_given(target, fields, message):
    with pytest.raises(ConfigError, match=message):
        choose(FLASH_FP8, target, 16, **fields)


@pytest.mark.parametrize(("kind", "problem"), [(Sm100Config, FLASH_FP8), (Sm90Config, FLASH)])
def test_another_architectures_recipe_are_refused(kind, problem):
    with pytest.raises(ConfigError, match=f"problem.recipe = '{problem.recipe}': must be fp8xfp"):
        choose(problem, Target.typical(kind.arch), 16)


def test_lead_of_sm90_follows_the_tiles():
    """Flash fills the SMs two and a half times; long tiles, as Pro's, keep the phases apart, on any grid and with any cluster."""
    flash, pro = (PRESETS[name].problem(8192, recipe="fp8xfp8") for name in ("flash", "pro"))
    leads = [choose(flash, Target(SM90, 132), tokens).lookahead for tokens in (64, 512, 1024, 2048, 4096, 8192)]
    assert leads == [32, 32, 16, 8, 4, 2]
    for num_sms, fields in ((132, {}), (132, {"cluster": 1}), (120, {})):
        assert choose(pro, Target(SM90, num_sms), 8192, **fields).lookahead == 48


def test_store_block_must_divide_the_tile():
    with pytest.raises(ConfigError, match=r"store_block_m = 32: must be 16 or 32 and a divisor of block_m = 16"):
        replace(GOOD, block_m=16)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(Sm100Config, "hidden", 256 * 200), (Sm100Config, "num_experts", 20000), (Sm90Config, "num_experts", 20000)],
)
def test_smem_too_small_for_two_stages(kind, field, value):
    huge = replace(FLASH if kind is Sm100Config else FLASH_FP8, **{"num_ranks": 1, field: value})
    with pytest.raises(ConfigError, match=f"problem.{field} = {value}: must be small enough to leave SMEM for two stages"):
        choose(huge, Target.typical(kind.arch), 1)


def test_register_file_overflow(monkeypatch):
    monkeypatch.setattr(Sm100Config, "arch", replace(SM100, registers=64 * 1024 - 2048))
    with pytest.raises(ConfigError, match=r"registers = .*: must be at most 63488 in all, got 65536"):
        replace(GOOD)


@pytest.mark.parametrize(
    ("num_sms", "allowed"), [*((n, "a positive multiple of 2") for n in (0, -2, 3)), *((n, "an integer") for n in (4.0, "148", True))]
)
def test_choose_rejects_the_grid(num_sms, allowed):
    with pytest.raises(ConfigError, match=f"num_sms = {num_sms!r}: must be {allowed}"):
        choose(FLASH, Target.typical("sm_100a", num_sms), 1024)


@pytest.mark.parametrize("target", ["sm_90a", None])
def test_choose_rejects_what_is_no_target(target):
    with pytest.raises(ProblemError, match=r"^target = .*: must be a Target, as in Target\.typical"):
        choose(FLASH, target, 8)


@pytest.mark.parametrize("value", [torch.zeros(40, 40), list(range(10000))], ids=["lines", "characters"])
def test_a_long_value_is_one_line_of_an_error(value):
    with pytest.raises(ConfigError) as caught:
        raise ConfigError("config", value, "short")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 450


def test_choose_rejects_tokens_and_blocks():
    with pytest.raises(ProblemError, match=r"num_tokens = 32769: must be between 0 and max_tokens_per_rank = 32768"):
        choose(FLASH, Target.typical("sm_100a"), 32769)
    with pytest.raises(ProblemError, match=r"num_tokens = 1.0: must be an integer"):
        choose(FLASH, Target.typical("sm_100a"), 1.0)
    with pytest.raises(ConfigError, match=r"block_m = 8: must be one of \[16, 32, 64, 96, 128, 192\]"):
        choose(FLASH, Target.typical("sm_100a"), 1, block_m=8)


def test_overrides_replace_fields_and_block_m_brings_its_tier():
    config = choose(FLASH, Target.typical("sm_100a"), 1024, block_m=64, num_stages=3)
    assert (config.block_m, config.store_block_m, config.epilogue_warpgroups, config.num_stages) == (64, 32, 1, 3)
    assert config.lookahead == choose_lookahead(FLASH, FLASH.expected_tokens_per_expert(1024), 64, 148)
    assert choose(FLASH, Target.typical("sm_100a"), 1024, block_m=64, epilogue_warpgroups=2).epilogue_warpgroups == 2


def test_gate_and_up_have_blocks_of_scales_of_their_own() -> None:
    """Also where the last of them has fewer rows."""
    layout = checkpoint_layout(Problem(256, 192, 4, 2, num_ranks=2, max_tokens_per_rank=8, recipe="fp8xfp8"))
    assert {name: shape for name, (_, shape) in layout.items()} == {
        "fc1": (2, 384, 256),
        "fc1_sf": (2, 4, 2),
        "fc2": (2, 256, 192),
        "fc2_sf": (2, 2, 2),
    }


@pytest.mark.parametrize(("preset", "config"), [("flash", Sm100Config), ("pro", Sm100Config), ("deepseek-v3", Sm90Config)])
def test_memory_of_a_rank_is_that_of_its_tensors(preset: str, config: type[Sm90Config | Sm100Config]) -> None:
    problem = PRESETS[preset].problem(64, recipe=config.recipes[0])
    held = sum(prod(shape) * dtype.itemsize for dtype, shape in checkpoint_layout(problem).values())
    symmetric, chosen = symmetric_buffer(problem, config.arch).size, choose(problem, Target.typical(config.arch), 64)
    facts = dict(kernel_of(chosen).facts(chosen))
    assert facts["memory per rank"] == f"{held / 2**20:,.0f} MiB of weights, {symmetric / 2**20:,.0f} MiB of symmetric buffer"
