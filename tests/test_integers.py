"""Integers of numpy and torch are integers wherever one is asked for; bools and floats are none."""

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum

import numpy as np
import pytest
import torch

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.store import kernel_name
from megamoe_dsl.cases import random_case, random_inputs, random_routing, random_weights
from megamoe_dsl.config_error import ConfigError, as_integer, parse_integer, shown
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.options.option import numbers
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import weight_names
from megamoe_dsl.runtime.preparation import Selection
from megamoe_dsl.runtime.watchdog import check_watchdog_ns
from script_options import at_least

PROBLEM = Problem(256, 128, 4, 2, num_ranks=2, max_tokens_per_rank=8)
SM90 = Problem(256, 128, 4, 2, num_ranks=2, max_tokens_per_rank=8, recipe="fp8xfp8")
KINDS: list[Callable[[int], object]] = [np.int64, np.int32, np.uint8, np.array, torch.tensor]


def test_messages_show_400_characters_of_a_value_in_one_line() -> None:
    assert shown("a" * 398) == f"'{'a' * 398}'" and shown("a" * 399) == f"'{'a' * 399}..."
    assert shown(torch.zeros(2, 2)) == "tensor([[0., 0.],         [0., 0.]])"


def test_a_text_of_thousands_of_digits_is_no_integer() -> None:
    """Python would refuse to read it."""
    assert [parse_integer(text) for text in (" -12 ", "9" * 30, "9" * 5000, "1.0", "")] == [-12, 10**30 - 1, None, None, None]


def test_the_least_number_of_an_option_is_taken() -> None:
    assert [at_least(least)(str(least)) for least in (0, 1)] == [0, 1] == numbers("ranks", "0,1", 0)


class Small(IntEnum):
    FOUR = 4


@pytest.mark.parametrize("value", [4, np.int8(4), np.uint64(4), np.array(4), torch.tensor(4), Small.FOUR])
def test_what_an_integer_is(value: object) -> None:
    assert as_integer(value) == 4 and type(as_integer(value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 4.0, np.float64(4), "4", None, [4], np.array([4, 4]), torch.tensor([4, 4])])
def test_what_none_is(value: object) -> None:
    assert as_integer(value) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_of_numpys_integers_is_the_same_problem(kind: Callable[[int], int]) -> None:
    fancy = Problem(256, kind(128), kind(4), kind(2), num_ranks=kind(2), max_tokens_per_rank=kind(8))
    assert fancy == PROBLEM and hash(fancy) == hash(PROBLEM) and repr(fancy) == repr(PROBLEM)
    assert fancy.check_num_tokens(kind(8)) == 8
    with pytest.raises(ProblemError, match="num_tokens = 9: must be between 0"):
        fancy.check_num_tokens(kind(9))


def test_a_clamp_may_be_numpys() -> None:
    assert Problem(256, 128, 4, 2, activation_clamp=np.float32(10)) == Problem(256, 128, 4, 2, activation_clamp=10)


def test_configurations_of_numpys_integers_are_the_same() -> None:
    """Under one name in a store, too."""
    pairs = [
        (choose(PROBLEM, Target.typical("sm_100a", np.int32(4)), np.int64(8), num_stages=np.int64(3)), {"num_stages": 3}),
        (choose(SM90, Target.typical("sm_90a", np.int32(4)), np.int64(8), block_m=np.int64(16)), {"block_m": 16}),
    ]
    for fancy, plain in pairs:
        same = choose(fancy.problem, Target.typical(fancy.arch, 4), 8, **plain)
        assert fancy == same and kernel_name(fancy) == kernel_name(same)
        assert not [one.name for one in fields(fancy) if type(getattr(fancy, one.name)).__module__ == "numpy"]
    assert kernel_name(PreDispatchConfig(PROBLEM, np.int64(4), "sm_90a")) == kernel_name(PreDispatchConfig(PROBLEM, 4, "sm_90a"))
    with pytest.raises(ConfigError, match=r"num_sms = 4\.0: must be an integer"):
        PreDispatchConfig(PROBLEM, 4.0, "sm_90a")  # type: ignore[arg-type]


def assert_equal(first: object, second: object) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_ranks_and_tokens_of_cases(kind: Callable[[int], int]) -> None:
    """A numpy seed was once looked for in a range of 2^64 numbers, one by one."""
    want, got = random_case(PROBLEM, [1, 2], 3), random_case(PROBLEM, [kind(1), kind(2)], kind(3))
    for name in ("x", "x_sf", "topk_idx", "topk_weights"):
        for a, b in zip(getattr(want, name), getattr(got, name), strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    weights, same = random_weights(PROBLEM, 1, 3), random_weights(PROBLEM, kind(1), kind(3))
    for name in weight_names(PROBLEM):
        assert torch.equal(getattr(weights, name), getattr(same, name))
    for a, b in zip(random_inputs(PROBLEM, 1, 5, 3), random_inputs(PROBLEM, kind(1), kind(5), kind(3)), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    (routed, _) = random_routing(PROBLEM, [kind(4), kind(0)], torch.Generator().manual_seed(0), target_expert=kind(3))
    assert (routed == 3).any(dim=1).all()


@pytest.mark.parametrize("seed", [True, 1.0, np.float64(1), "1", None])
def test_a_seed_that_is_no_integer_is_refused(seed: object) -> None:
    message = r"seed = .*: must be an integer"
    with pytest.raises(ProblemError, match=message):
        random_case(PROBLEM, [1, 1], seed)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=message):
        random_weights(PROBLEM, 0, seed)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=message):
        random_inputs(PROBLEM, 0, 1, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-(1 << 63) - 1, 1 << 64])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ProblemError, match=f"seed = {seed}: must be between -2"):
        random_case(PROBLEM, [1, 1], seed)
    with pytest.raises(ProblemError, match=f"seed = {seed}: must be between -2"):
        random_inputs(PROBLEM, 0, 1, seed)


@pytest.mark.parametrize("seed", [-(1 << 63), (1 << 64) - 1, np.uint64((1 << 64) - 1)])
def test_seeds_at_the_edges_are_taken(seed: int) -> None:
    assert random_case(PROBLEM, [1, 1], seed).exact


def test_bounds_and_limits_of_a_layer() -> None:
    assert Selection(PROBLEM, [np.int64(4), np.int32(4), 2]).bounds == [2, 4, 8]
    with pytest.raises(ProblemError, match="bounds = True: must be an integer"):
        Selection(PROBLEM, [True])
    assert type(check_watchdog_ns(np.int64(10**9))) is int
