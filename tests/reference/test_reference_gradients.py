"""Gradients of the layer on one GPU: in float64 those of autograd, and of finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl.activation import ACTIVATIONS, Activation
from megamoe_dsl.problem import Problem
from megamoe_dsl.reference.activation import activate, activation_gradient, gated, linear
from megamoe_dsl.reference.expert_gradients import expert_sums, row_gradients, token_gradients, weight_gradients
from megamoe_dsl.reference.router import SCORES, logits_of, router_metadata, top_experts, top_experts_gradient

TOKENS, HIDDEN, INTERMEDIATE, EXPERTS = 9, 32, 16, 5


def plain_layer(
    form: Activation, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    gate, up = torch.einsum("th,tkih->tki", x, w1[idx.clamp(min=0)]).chunk(2, dim=2)
    if form.clamp is not None:
        gate, up = gate.clamp(max=form.clamp), up.clamp(-form.clamp, form.clamp)
    rows = torch.einsum("tki,tkhi->tkh", gated(form, gate) * linear(form, up), w2[idx.clamp(min=0)])
    return (rows * weights.where(idx >= 0, 0.0)[:, :, None]).sum(dim=1)


def found(
    problem: Problem, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, idx: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, w1, w2 and weights, stage by stage."""
    metadata = router_metadata(idx, len(w1))
    sources = metadata.sources.long()
    stored = torch.cat([x[of] @ w.T for w, of in zip(w1, sources.split(metadata.counts.tolist()), strict=True)])
    raw = expert_sums((dy[sources], dy), (w2.mT, w2), metadata.counts)
    rows = row_gradients(problem, raw, metadata, weights, stored, (torch.clone, torch.clone))
    return (
        token_gradients(expert_sums((rows.rows, dy), (w1.mT, w1), metadata.counts), metadata),
        weight_gradients(rows.rows, x[sources], metadata),
        weight_gradients(dy[sources], rows.weighted, metadata),
        rows.topk_weights,
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_in_float64_they_are_autograd_s(activation: str) -> None:
    """With masked slots, an expert without rows, and clamped values."""
    problem, generator = Problem(256, 128, 1, 1, activation=activation), torch.Generator().manual_seed(3)
    x, dy = (torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64) for _ in range(2))
    w1, w2 = (torch.randn(EXPERTS, *s, generator=generator).double() for s in ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)))
    weights = torch.rand(TOKENS, 3, generator=generator, dtype=torch.float64)
    idx = torch.rand(TOKENS, EXPERTS - 1, generator=generator).topk(3).indices
    idx[0, 1], idx[4] = -1, -1
    leaves = [one.clone().requires_grad_() for one in (x, w1, w2, weights)]
    plain_layer(problem.activates, *leaves[:3], idx, leaves[3]).backward(dy)
    gradients = found(problem, x, w1, w2, weights, idx, dy)
    for one, leaf in zip(gradients, leaves, strict=True):
        assert leaf.grad is not None and leaf.grad.any()
        torch.testing.assert_close(one, leaf.grad, rtol=1e-11, atol=1e-11)
    assert not gradients[1][-1].any() and not gradients[3][4].any()


@pytest.mark.parametrize(("activation", "scores"), list(zip(ACTIVATIONS, SCORES, strict=True)))
def test_they_are_those_of_finite_differences(activation: str, scores: str) -> None:
    """From the router's logits on, with masked slots, an expert without rows, and clamped values."""
    problem, idx = Problem(256, 128, 1, 1, activation=activation), torch.tensor([[0, 2], [2, -1], [-1, -1], [1, 0]])

    def shares(logits: torch.Tensor) -> torch.Tensor:
        chosen = logits_of(logits, idx)
        parts = chosen.softmax(dim=1) if scores == "softmax" else SCORES[scores](chosen)
        return (2.5 * parts / parts.sum(dim=1, keepdim=True)).masked_fill(idx < 0, 0.0)

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*leaves)
            return plain_layer(problem.activates, *leaves[:3], idx, shares(leaves[3]))

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
            *given, logits = ctx.saved_tensors
            *first, of_weights = found(problem, *given, shares(logits), idx, dy)
            of_chosen = top_experts_gradient(logits_of(logits, idx), of_weights, scores, 2.5).double()
            return *first, torch.zeros_like(logits).scatter_add(1, idx.clamp(min=0), of_chosen)

    torch.manual_seed(5)
    shapes = (4, 2), (4, 4, 2), (4, 2, 2), (4, 4)
    leaves = [torch.randn(*shape, dtype=torch.float64).mul_(2).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(Layer.apply, leaves)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_product_is_the_forward_pass_s(activation: str) -> None:
    problem = Problem(256, 128, 1, 1, activation=activation)
    halves = (torch.randn(50, 64) * 8).bfloat16().float()
    product, gradient = activation_gradient(problem.activates, problem.activation_clamp, halves, torch.ones(50, 32), fast_math=True)
    assert torch.equal(product, activate(problem, halves, None)) and gradient.isfinite().all()


def test_rows_of_float32_have_the_product_of_the_forward_pass() -> None:
    problem = Problem(256, 128, 1, 1)
    stored, weights, metadata = (torch.randn(50, 64) * 8).bfloat16(), torch.ones(50, 1), router_metadata(torch.zeros(50, 1).int(), 1)
    product = activate(problem, stored.float(), None)
    rows = row_gradients(problem, torch.ones(50, 32), metadata, weights, stored.float(), (torch.clone, torch.clone))
    assert torch.equal(rows.weighted, product)
    assert torch.equal(rows.topk_weights.flatten(), product.double().sum(1).float())


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_logits_have_the_gradient_of_their_shares(scores: str) -> None:
    logits = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    idx, given = top_experts(logits.detach(), 3, scores, scale=2.5)[0].long(), torch.randn(6, 3)
    chosen = logits.gather(1, idx)
    own = {"softmax": torch.exp, "sigmoid": torch.sigmoid, "sqrtsoftplus": lambda one: torch.nn.functional.softplus(one).sqrt()}[scores](
        chosen
    )
    parts = own / own.sum(1, keepdim=True)
    (2.5 * parts).backward(given.double())
    assert logits.grad is not None
    torch.testing.assert_close(top_experts_gradient(chosen.detach(), given, scores, 2.5), logits.grad.gather(1, idx).float())
