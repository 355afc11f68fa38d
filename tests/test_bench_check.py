"""Sampled tokens of a timed point beside the reference (bench/check.py); other ranks are stand-ins."""

from __future__ import annotations

import pytest
import torch

from difference import relative_difference
from megamoe_dsl.bench.check import Check, Expectation, expected_results, gather, sample_rows, some_tokens
from megamoe_dsl.cases import random_inputs, random_weights
from megamoe_dsl.problem import Problem
from ranks_in_threads import on_ranks


@pytest.mark.parametrize("tokens", [0, 1, 3, 1000])
def test_sampled_rows_are_distinct_and_include_the_ends(tokens: int) -> None:
    rows = sample_rows(tokens, 4).tolist()
    assert len(set(rows)) == len(rows) == min(tokens, 4)
    assert not tokens or (rows[0], rows[-1]) == (0, tokens - 1)


def test_sampled_tokens_are_held_to_the_reference() -> None:
    problem = Problem(256, 128, 4, 2, 2, 9, "fp8xfp8")
    inputs = [random_inputs(problem, rank, 9, 3) for rank in range(2)]
    weights = [random_weights(problem, rank, 3) for rank in range(2)]
    rows = sample_rows(9, 3)
    sampled = expected_results(problem, [some_tokens(one, rows) for one in inputs], weights)
    y, summed, _ = expected_results(problem, inputs, weights)
    assert torch.equal(sampled[0], torch.cat([y[rows], y[9 + rows]]))
    assert not torch.equal(summed.float(), y.float()), "the tensor core cuts off what an exact sum has"
    right = Check.of(sampled[1], *sampled)
    assert right.passed and right.elements == 6 * 256 and right.same_bits == 1.0 and right.worst <= 1
    wrong = sampled[1].clone()
    wrong[4, 7] = wrong[4, 7] + 1
    wrong[5, 0] = float("nan")
    assert Check.of(wrong, *sampled).violations == 2
    masked = torch.zeros(1, 256)
    nothing = Check.of(masked, masked, masked, bound=masked)
    assert nothing.passed and nothing.worst == 0


def test_nothing_is_all_right() -> None:
    """Of ranks without tokens."""
    none = torch.zeros(0, 256)
    assert Check.of(none.bfloat16(), none, none, none) == Check(elements=0, violations=0, worst=0.0, relative=0.0, same_bits=1.0)


def test_what_a_check_says() -> None:
    """A NaN, and what is as far as the bound, or farther."""
    y, bound = torch.tensor([[3.0, 4.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.5, 0.0]])
    expected = y, torch.tensor([[3.0, 4.0, 9.0, 0.0]]), bound
    assert Check.of(torch.tensor([[3.0, 3.5, 0.0, 0.0]]), *expected) == Check(4, 0, worst=1.0, relative=0.1, same_bits=0.5)
    assert Check.of(torch.tensor([[3.0, 3.0, 0.0, 0.0]]), *expected) == Check(4, 1, worst=2.0, relative=0.2, same_bits=0.5)
    found = Check.of(torch.tensor([[3.0, 4.0, torch.nan, 0.0]]), *expected)
    assert (found.violations, found.passed, found.same_bits) == (1, False, 0.75)


def test_tensors_of_all_ranks_keep_their_dtypes_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are not contiguous, and of a rank that has none of them."""

    def run(rank: int) -> list[list[torch.Tensor]]:
        values = torch.arange(100 * rank, 100 * rank + 8).view(4, 2)[: 2 * rank : 2]
        return gather([values, values.float().to(torch.float8_e4m3fn), values.bfloat16()])

    for everyone in on_ranks(3, run, monkeypatch):
        wanted = [[], [[100, 101]], [[200, 201], [204, 205]]]
        assert [whole.tolist() for whole, _, _ in everyone] == wanted
        assert {tuple(one.dtype for one in theirs) for theirs in everyone} == {(torch.int64, torch.float8_e4m3fn, torch.bfloat16)}
        assert everyone[2][1].float().tolist() == torch.tensor(wanted[2]).float().to(torch.float8_e4m3fn).float().tolist()


def test_rank_0_checks_the_rows_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the weights of all, which it alone has; an element of another rank is wrong there."""
    problem = Problem(256, 128, 4, 2, 2, 9, "fp8xfp8")
    inputs = [random_inputs(problem, rank, 9, 3) for rank in range(2)]
    weights = [random_weights(problem, rank, 3) for rank in range(2)]
    rows = sample_rows(9, 3)
    right = expected_results(problem, inputs, weights)[1].view(2, 9, 256)

    def run(rank: int) -> list[Check | None]:
        expectation = Expectation(problem, inputs[rank], rows, None if rank else weights)
        y = right[rank].clone()
        found = [expectation.check(y)]
        y[4, 5] += rank
        y[3, 5] += 1  # of a token that is not sampled
        return [*found, expectation.check(y)]

    (good, bad), others = on_ranks(2, run, monkeypatch)
    assert good is not None and bad is not None and others == [None, None]
    assert (good.elements, good.violations, good.same_bits) == (2 * 3 * 256, 0, 1.0)
    assert (bad.elements, bad.violations, bad.same_bits) == (2 * 3 * 256, 1, 1 - 1 / (2 * 3 * 256))


def test_ranks_differ_by_the_norm_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which one may have nothing but zeros, or no tokens."""
    ys = torch.tensor([[3.0, 1.0]]), torch.tensor([[0.0, 7.0]]), torch.zeros(0, 2)
    others = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0]]), torch.zeros(0, 2)
    found = on_ranks(3, lambda rank: relative_difference(ys[rank].bfloat16(), others[rank].bfloat16()), monkeypatch)
    assert found == pytest.approx([((9 + 49) / 25) ** 0.5] * 3)
    assert on_ranks(1, lambda rank: relative_difference(ys[2], others[2]), monkeypatch) == [0.0]
