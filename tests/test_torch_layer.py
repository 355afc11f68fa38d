"""The layer in torch alone (bench/torch_layer.py) computes what the reference does, up to the rounding of what it does not quantize."""

from __future__ import annotations

from threading import Barrier, Thread, local

import pytest
import torch

import torch_layer
from megamoe_dsl.cases import Case, TokenInputs, random_case
from megamoe_dsl.problem import Problem
from torch_layer import TorchLayer

HIDDEN, INTERMEDIATE, EXPERTS, TOPK = 256, 128, 4, 2


class Exchange:
    """`all_to_all_single` between threads, one for each rank."""

    def __init__(self, ranks: int) -> None:
        self.rank, self.barrier = local(), Barrier(ranks)
        self.given: list[tuple[torch.Tensor, ...]] = [()] * ranks

    def __call__(
        self, output: torch.Tensor, given: torch.Tensor, incoming: list[int] | None = None, outgoing: list[int] | None = None
    ) -> None:
        ranks = len(self.given)
        self.given[self.rank.value] = given.split(outgoing or [len(given) // ranks] * ranks)
        self.barrier.wait()
        parts = [one[self.rank.value] for one in self.given]
        assert incoming is None or [len(one) for one in parts] == incoming
        output.copy_(torch.cat(parts))
        self.barrier.wait()


def difference(case: Case, ys: list[torch.Tensor]) -> float:
    """Relative, in the 2-norm over all ranks."""
    right = case.reference().y
    y, other = torch.cat(ys).double(), torch.cat([one.double() for one in right])
    return float((y - other).norm() / other.norm())


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16"])
@pytest.mark.parametrize(("tokens", "clamp"), [([7], None), ([9], 0.5), ([5, 11], None), ([0, 6], None)], ids=str)
def test_it_computes_the_layer(tokens: list[int], clamp: float | None, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = len(tokens)
    problem = Problem(HIDDEN, INTERMEDIATE, EXPERTS * ranks, TOPK, ranks, 16, recipe=recipe, activation_clamp=clamp)
    case = random_case(problem, tokens, 3, exact=False)
    exchange = Exchange(ranks)
    monkeypatch.setattr(torch_layer.dist, "all_to_all_single", exchange)
    ys = [torch.full((count, HIDDEN), float("nan"), dtype=torch.bfloat16) for count in tokens]

    def run(rank: int) -> None:
        exchange.rank.value = rank
        layer = TorchLayer(problem, case.weights[rank])
        layer.load(TokenInputs(case.x[rank], case.x_sf[rank], case.topk_idx[rank], case.topk_weights[rank]))
        layer(ys[rank])

    threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = difference(case, ys)
    most = 0.06 if problem.formats.scaled else 0.01
    assert 1e-4 < found < most, "the reference rounds the products of SwiGLU to E4M3, or later than this layer to BF16"
