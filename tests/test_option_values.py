"""No option of a layer is ignored: each becomes its field of the problem or of the configuration, and changes no other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from megamoe_dsl import GemmProblem
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem
from megamoe_dsl.cli.options import CompiledOptions, ConfigOptions, KernelOptions, parse_fields
from megamoe_dsl.kernels.moe.sm90.choose import choose_pool_rows
from megamoe_dsl.presets import projection
from megamoe_dsl.problem import ProblemError

BASE: dict[str, Any] = {"arch": "sm_90a", "hidden": 512, "intermediate": 256, "experts": 8, "topk": 2, "ranks": 2, "recipe": "fp8xfp8"}
PROBLEM = {
    "hidden": (1024, "hidden"),
    "intermediate": (512, "intermediate"),
    "experts": (16, "num_experts"),
    "topk": (3, "topk"),
    "ranks": (4, "num_ranks"),
    "recipe": ("fp8xmxfp4", "recipe"),
    "combine": ("e4m3", "combine"),
    "clamp": (3.0, "activation_clamp"),
    "activation": ("swigluoai", "activation"),
    "biases": (True, "biases"),
    "weigh_results": (True, "weigh_results"),
}
CONFIG = {"block_m": (32, "block_m"), "lookahead": (3, "lookahead"), "stages": (2, "num_stages"), "pool_rows": (1024, "pool_rows")}


@pytest.mark.parametrize(("name", "field"), [("experts", "num_experts"), ("topk", "topk"), ("hidden", "hidden")])
def test_zero_is_a_number_that_was_given(name: str, field: str) -> None:
    with pytest.raises(ProblemError, match=rf"^{field} = 0: must be "):
        ConfigOptions(**{**BASE, name: 0}).problem(8)


@pytest.mark.parametrize("name", PROBLEM)
def test_an_option_becomes_its_field_of_the_problem(name: str) -> None:
    value, field = PROBLEM[name]
    plain, given = (ConfigOptions(**{**BASE, **changes}).problem(8) for changes in ({}, {name: value}))
    assert getattr(given, field) == value != getattr(plain, field)
    assert given == replace(plain, **{field: value})


@pytest.mark.parametrize("name", CONFIG)
def test_an_option_becomes_its_field_of_the_configuration(name: str) -> None:
    value, field = CONFIG[name]
    configs = []
    for changes in ({}, {name: value}):
        options = ConfigOptions(**{**BASE, **changes})
        configs.append(options.config(options.problem(8), 8, 4))
    plain, given = configs
    assert getattr(given, field) == value != getattr(plain, field)
    assert given.problem == plain.problem and given.num_sms == plain.num_sms == 4


def test_tokens_of_4_bits_have_stages_of_more_channels() -> None:
    options = ConfigOptions(**{**BASE, "arch": "sm_100a", "recipe": "mxf4xmxf4"})
    chosen = options.config(options.problem(8), 8, 4)
    other = replace(options, block_k=384 - chosen.block_k)
    assert other.config(other.problem(8), 8, 4).block_k == 384 - chosen.block_k


def test_a_pool_of_no_rows_is_chosen() -> None:
    options = ConfigOptions(**{**BASE, "pool_rows": 0})
    problem = options.problem(2048)
    assert options.config(problem, 8, 4).pool_rows == choose_pool_rows(problem)


def test_capacity_and_tokens_are_two_things() -> None:
    """A kernel is chosen for the tokens that there are."""
    options = CompiledOptions(**BASE, tokens=8, max_tokens=512, sms=6, kernel="moe_fc1")
    chosen = options.chosen
    assert (type(chosen).__name__, chosen.stage, chosen.num_sms, chosen.problem) == ("StageConfig", "fc1", 6, options.problem(512))
    assert chosen.block_m < replace(options, tokens=512).chosen.block_m
    assert replace(options, max_tokens=None).chosen.problem.max_tokens_per_rank == 8


def test_options_of_other_kernels_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given replaces what a preset has; a kernel is for the first of its architectures unless another is named."""
    monkeypatch.delenv("MEGAMOE_ARCH", raising=False)
    options = KernelOptions(kernel="gemm", preset="deepseek-v3/o", fields="n=512", recipe="bf16xbf16", choices="group_m=3")
    found = options.other(64, 20)
    assert found.problem == replace(projection("deepseek-v3/o").problem, n=512, recipe="bf16xbf16")
    assert (found.arch, found.num_sms, found.group_m) == (SM90, 20, 3)
    assert replace(options, recipe=None).other(64, None).problem.recipe == "fp8xfp8"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((None, {}), ("", {}), ("n=128,k=-7", {"n": 128, "k": -7}), ("kind=packed,,output=f32,", {"kind": "packed", "output": "f32"})),
        *(("accumulate=true", {"accumulate": True}), ("accumulate=TRUE,transposed_b=False", {"accumulate": True, "transposed_b": False})),
        ("gate_up=", {"gate_up": ""}),
    ],
)
def test_fields_are_of_their_types(text: str | None, found: dict[str, Any]) -> None:
    assert parse_fields("--fields", text, GatherGemmProblem if "gate_up" in (text or "") else GemmProblem) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n=1.5", "n = '1.5': must be an integer"),
        ("n", "n = '': must be an integer"),
        ("accumulate=yes", "accumulate = 'yes': must be true or false"),
        ("n=1,m=2", "--fields = 'm=2': must be FIELD=VALUE with one of n, k, "),
        ("n=1,n=1", "--fields = 'n=1,n=1': must be given with n once"),
    ],
)
def test_other_fields_and_values_are_named(text: str, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_fields("--fields", text, GemmProblem)
    assert str(caught.value).startswith(message)


def test_a_kernel_without_recipes_takes_none() -> None:
    fields = "num_experts=8,topk=2"
    assert KernelOptions(kernel="top_experts", fields=fields).other(64, None).problem.topk == 2
    with pytest.raises(ProblemError, match="--recipe = 'fp8xfp8': must be left out with --kernel top_experts"):
        KernelOptions(kernel="top_experts", fields=fields, recipe="fp8xfp8").other(64, None)


def test_the_variable_of_an_architecture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAMOE_ARCH", "sm_80")
    with pytest.raises(ProblemError, match="MEGAMOE_ARCH = 'sm_80': must be one of"):
        ConfigOptions().architecture  # noqa: B018
    assert ConfigOptions(arch="sm_90a").architecture == SM90
    monkeypatch.setenv("MEGAMOE_ARCH", "")
    assert ConfigOptions().architecture == SM100


def test_all_options_are_tried() -> None:
    assert {one.name for one in fields(ConfigOptions)} == {*PROBLEM, *CONFIG, "arch", "preset", "block_k"}
