"""The layer in torch alone (bench/torch_layer.py) computes what the reference does, up to the rounding of what it does not quantize."""

from __future__ import annotations

from dataclasses import replace
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


def test_its_result_has_gradients() -> None:
    """Of x, top-k weights and both matrices, beside those of every expert for itself in float64."""
    problem = Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOPK, 1, 16, recipe="bf16xbf16")
    case = random_case(problem, [9], 3, exact=False)
    weights, x, idx, given = case.weights[0], case.x[0], case.topk_idx[0], case.topk_weights[0]
    leaves = [one.clone().requires_grad_() for one in (x, given, weights.fc1, weights.fc2)]
    layer = TorchLayer(problem, replace(weights, fc1=leaves[2], fc2=leaves[3]))
    layer.load(TokenInputs(leaves[0], case.x_sf[0], idx, leaves[1]))
    dy = torch.randn(9, HIDDEN)
    found = torch.autograd.grad(layer.result(), leaves, dy)
    exact = [one.detach().double().requires_grad_() for one in leaves]
    gate, up = torch.einsum("th,tknh->tkn", exact[0], exact[2][idx]).chunk(2, dim=-1)
    rows = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, exact[3][idx])
    wanted = torch.autograd.grad((rows * exact[1][:, :, None]).sum(1), exact, dy.double())
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 0.01 * other.norm()
