"""No option of a layer is ignored: each becomes its field of the problem or of the configuration, and changes no other."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from megamoe_dsl import GemmProblem, Target, choose
from megamoe_dsl.arch import SM90, SM100, Arch
from megamoe_dsl.blocks.gemm.problem import GatherGemmProblem
from megamoe_dsl.cli.options import CompiledOptions, ConfigOptions, KernelOptions, SimulateOptions, parse_fields, takes
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.sm90.choose import choose_pool_rows
from megamoe_dsl.options.option import option
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


def test_fields_of_other_types_are_not_read_from_text() -> None:
    with pytest.raises(ProblemError, match=r"--choices = 'rows_of_a=1': must be FIELD=VALUE with one of hours, quick$"):
        parse_fields("--choices", "rows_of_a=1", Few)


def test_a_kernel_without_recipes_takes_none() -> None:
    fields = "num_experts=8,topk=2"
    assert KernelOptions(kernel="top_experts", fields=fields).other(64, None).problem.topk == 2
    with pytest.raises(ProblemError, match="--recipe = 'fp8xfp8': must be left out with --kernel top_experts"):
        KernelOptions(kernel="top_experts", fields=fields, recipe="fp8xfp8").other(64, None)


@dataclass(frozen=True)
class Few:
    """Options of a command."""

    rows_of_a: int | None = option(None, "Rows.", "Sizes", shown="3")
    name: str | None = option(None, "A name.", shown="none")
    hours: int = option(2, "Hours.")
    quick: bool = option(False, "Hurry.")


def test_a_command_has_the_options_of_its_dataclass_and_then_its_own() -> None:
    """Each with its default, its heading, and what is shown as the default."""
    seen = list[Any]()

    @takes(Few)
    def run(given: Few, what: Annotated[str, typer.Argument()], more: Annotated[int, typer.Option("--further")] = 7) -> None:
        """Runs."""
        seen.append((given, what, more))

    app = typer.Typer()
    app.command()(run)
    words = ["x", "--rows-of-a", "0", "--quick", "--name", "", "--further", "0"]
    for arguments in (["x"], words):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [(Few(), "x", 7), (Few(0, "", quick=True), "x", 0)]
    assert (run.__name__, run.__doc__) == ("run", "Runs.") and list(signature(run).parameters) == [
        "rows_of_a",
        "name",
        "hours",
        "quick",
        "what",
        "more",
    ]
    shown = " ".join(CliRunner(env={"COLUMNS": "120", "TERM": "dumb"}).invoke(app, ["--help"]).output.split())
    assert (
        "Sizes" in shown
        and "Rows. [default: (3)]" in shown
        and "Hours. [default: 2]" in shown
        and "A name. [default: (none)]" in shown
        and "--no-quick" not in shown
    )


def test_fields_that_are_given_in_python_need_not_be_all() -> None:
    """A command that another one calls, as `demo` calls `bench`."""
    seen = list[Any]()

    @takes(Few)
    def run(given: Few, other: int = 5) -> None:
        seen.append((given, other))

    run(name="x")  # type: ignore[call-arg]
    run(rows_of_a=4, other=6)  # type: ignore[call-arg]
    assert seen == [(Few(name="x"), 5), (Few(4), 6)]


@pytest.mark.parametrize(
    "options",
    [
        ConfigOptions(**{**BASE, "recipe": ""}),
        ConfigOptions(preset="flash", recipe=""),
        KernelOptions(kernel="gemm", fields="n=128,k=128", recipe=""),
    ],
)
def test_number_formats_without_a_name_are_not_the_default(options: KernelOptions) -> None:
    with pytest.raises(ProblemError, match=r"^recipe = '': must be "):
        options.problem(8) if type(options) is ConfigOptions else options.other(8, None)


@pytest.mark.parametrize(
    ("tokens", "ranks", "found"),
    [
        *(("13", 3, [13] * 3), ("13,7", 2, [13, 7]), ("0", 1, [0]), ("0,0", 2, [0, 0]), ("0", 128, [0] * 128), (" 5", 1, [5])),
        *((text, 2, f"tokens = '{text}': must be one number, or one for each of 2 ranks") for text in ("1,2,3", "0,0,0")),
        ("1,2", 1, "tokens = '1,2': must be one number, or one for each of 1 ranks"),
        *((text, 2, f"tokens = '{text}': must be numbers separated by commas") for text in ("", ",", "1,", "1 2", "x")),
        *((text, 2, "tokens = -1: must be at least 0") for text in ("-1", "3,-1")),
        *(("13", ranks, f"num_ranks = {ranks}: must be between 1 and 128") for ranks in (0, -1, 129)),
    ],
)
def test_tokens_of_ranks(tokens: str, ranks: int, found: list[int] | str) -> None:
    given = SimulateOptions(tokens=tokens)
    if isinstance(found, list):
        assert given.tokens_of(ranks) == found
    else:
        with pytest.raises(ProblemError) as caught:
            given.tokens_of(ranks)
        assert str(caught.value) == found


def test_a_simulation_is_of_one_launch_with_exact_data() -> None:
    assert [(one.num_launches, one.exact) for one in (SimulateOptions(), SimulateOptions(launches=3, random=True))] == [
        (1, True),
        (3, False),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": None}, "hidden = None: must be given, or taken from a --preset"),
        ({"topk": None}, "topk = None: must be given, or taken from a --preset"),
        ({"kernel": "gemm"}, "--hidden = 512: must be left out with --kernel gemm"),
        ({"fields": "n=128"}, "--fields = 'n=128': must be left out with --kernel mega_moe"),
        ({"choices": ""}, "--choices = '': must be left out with --kernel mega_moe"),
        ({"block_k": 128}, "block_k = 128: must be left out with --kernel mega_moe for sm_90a"),
        ({"tokens": 0}, "--tokens = 0: must be a positive integer"),
        ({"max_tokens": 0}, "--max-tokens = 0: must be a positive integer"),
        ({"tokens": 9, "max_tokens": 8}, "num_tokens = 9: must be between 0 and --max-tokens = 8"),
    ],
)
def test_a_kernel_that_cannot_be_chosen_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ProblemError, ConfigError)) as caught:
        CompiledOptions(**{**BASE, **options}).chosen  # noqa: B018
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("fields", [None, "", "n=128", "k=128"])
def test_fields_that_a_gemm_needs_are_named_together(fields: str | None) -> None:
    with pytest.raises(ProblemError) as caught:
        CompiledOptions(kernel="gemm", fields=fields).chosen  # noqa: B018
    assert str(caught.value) == f"--fields = {fields!r}: must be given with n=NUMBER, k=NUMBER of --kernel gemm"


@pytest.mark.parametrize(
    ("given", "variable", "found"),
    [(None, None, SM90), (None, "", SM90), (None, "sm_100a", SM100), ("sm_100a", None, SM100), ("sm_90a", "sm_100a", SM90)],
)
def test_a_gemm_is_chosen_for_rows_sms_and_architecture(
    given: str | None, variable: str | None, found: Arch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEGAMOE_ARCH", raising=False) if variable is None else monkeypatch.setenv("MEGAMOE_ARCH", variable)
    chosen = CompiledOptions(kernel="gemm", fields="n=128,k=256", arch=given, tokens=64, sms=20).chosen
    recipe = "fp8xfp8" if found is SM90 else "fp8xfp4"
    assert chosen == choose(GemmProblem(128, 256, recipe=recipe), Target.typical(found, 20), 64) and chosen.num_sms == 20


def test_a_kernel_that_an_architecture_lacks_is_named() -> None:
    with pytest.raises(ProblemError, match="arch = 'sm_100a': must be one that decode is written for: sm_90a"):
        CompiledOptions(kernel="decode", fields="hidden=512,intermediate=256,num_experts=8,topk=2", arch="sm_100a").chosen  # noqa: B018


def test_the_variable_of_an_architecture_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAMOE_ARCH", "sm_80")
    with pytest.raises(ProblemError, match="MEGAMOE_ARCH = 'sm_80': must be one of"):
        ConfigOptions().architecture  # noqa: B018
    assert ConfigOptions(arch="sm_90a").architecture == SM90
    monkeypatch.setenv("MEGAMOE_ARCH", "")
    assert ConfigOptions().architecture == SM100


def test_all_options_are_tried() -> None:
    assert {one.name for one in fields(ConfigOptions)} == {*PROBLEM, *CONFIG, "arch", "preset", "block_k"}
