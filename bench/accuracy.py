"""How far a layer's y is from float64 in each recipe: the tables of docs/lab/accuracy.md.  On a CPU, by the reference.

    python bench/accuracy.py [--out FOLDER] [--presets flash,...] [--tokens 64]

Weights and tokens are drawn in BF16.  A recipe quantizes both, and the layer runs as `reference.stages` defines it.  Its y is compared with
that of float64 from the same BF16 numbers, and from the recipe's own weights, as a checkpoint publishes them.  Heavy-tailed tokens have
100 times the scale in one channel of 256; in balanced ones the weights of those channels are a hundredth, so that the others make y.  All
tokens have a root mean square of 1, as the norm before a layer leaves them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megamoe_dsl.activation import ACTIVATIONS, SILU
from megamoe_dsl.presets import PRESETS, Preset, preset
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import dequantize, nvfp4_factor, quantize
from megamoe_dsl.recipe import BF16, COMBINE, RECIPES, Format, Recipe
from megamoe_dsl.reference import Accumulate, activate, combine, requantize, scaled_matmul, travel
from megamoe_dsl.reference.activation import gated, linear
from records import save_each

EXPERTS, TOPK = 4, 2
NORMAL, HEAVY, BALANCED = "normal", "heavy-tailed", "balanced"
OUTLIERS, OUTLIER = 256, 100.0
"""One channel of so many is so many times larger."""
EXACT, HOPPER = "exact", "Hopper's"
HOPPER_TOKENS = 16
"""Sums of a tensor core are formed product by product: of fewer tokens."""


class Matrix(NamedTuple):
    """Codes [rows, K] with scales, and the factor of the whole matrix: 1 in formats that have none."""

    codes: torch.Tensor
    sf: torch.Tensor
    factor: torch.Tensor

    def sums(self, x: Matrix, accumulate: Accumulate) -> torch.Tensor:
        """x times this transposed, float32 [n, rows]."""
        return scaled_matmul(x.codes, x.sf, self.codes, self.sf, accumulate) * (x.factor * self.factor)

    @property
    def values(self) -> torch.Tensor:
        """float64 [rows, K]."""
        return dequantize(self.codes, self.sf) * self.factor.double()


class Expert(NamedTuple):
    """Weights of one expert, Linear1's apart: [I, H], [I, H] and [H, I], tensors or each a `Matrix`."""

    gate: Any
    up: Any
    down: Any


@dataclass(frozen=True)
class Layer:
    """BF16 tokens [T, H] and experts, and every token's experts [T, topk] with their weights."""

    tokens: torch.Tensor
    experts: list[Expert]
    idx: torch.Tensor
    weights: torch.Tensor

    def rows(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and slots that go to an expert."""
        token, slot = (self.idx == expert).nonzero(as_tuple=True)
        return token, slot


@dataclass(frozen=True)
class Accuracy:
    """Errors of y [T, H] as fractions of float64's norm; `own_weights` is that from the recipe's weights rather than BF16's.

    sums     how those of a tensor core are formed: exactly, or as Hopper's
    cosine   between all of y and all of float64's
    worst    error of the worst token
    """

    preset: str
    inputs: str
    recipe: str
    activation: str
    combine: str
    sums: str
    error: float
    cosine: float
    worst: float
    own_weights: float


def quantized(values: torch.Tensor, form: Format) -> Matrix:
    """A whole matrix in a format, with the factor of its largest value if it has one."""
    return Matrix(*quantize(values.float(), form), nvfp4_factor(values) if form.factor else torch.ones(()))


def drawn(shape: Preset, inputs: str, tokens: int, seed: int = 0) -> Layer:
    """Normal weights of variance 1 / K, and normal tokens; unless `NORMAL`, the same few channels of all tokens are large."""
    generator = torch.Generator().manual_seed(seed)
    h, i = shape.hidden, shape.intermediate

    scale = torch.ones(h)
    if inputs != NORMAL:
        scale[torch.randperm(h, generator=generator)[: h // OUTLIERS]] = OUTLIER

    def normal(rows: int, k: int, per: torch.Tensor | float = 1.0) -> torch.Tensor:
        return (torch.randn(rows, k, generator=generator) * k**-0.5 / per).bfloat16()

    per = scale if inputs == BALANCED else 1.0
    experts = [Expert(normal(i, h, per), normal(i, h, per), normal(h, i)) for _ in range(EXPERTS)]
    x = torch.randn(tokens, h, generator=generator) * scale
    x /= x.square().mean(dim=1, keepdim=True).sqrt()
    scores = torch.rand(tokens, EXPERTS, generator=generator).topk(TOPK, dim=1)
    return Layer(x.bfloat16(), experts, scores.indices, scores.values / scores.values.sum(dim=1, keepdim=True))


def exact(layer: Layer, experts: list[Expert], problem: Problem) -> torch.Tensor:
    """y in float64, float64 [T, H]."""
    y, form, clamp = torch.zeros(layer.tokens.shape, dtype=torch.float64), problem.activates, problem.activation_clamp
    for number, expert in enumerate(experts):
        token, slot = layer.rows(number)
        x = layer.tokens[token].double()
        gate, up = x @ expert.gate.double().T, x @ expert.up.double().T
        if clamp is not None:
            gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        h = gated(form, gate) * linear(form, up) * layer.weights[token, slot, None].double()
        y.index_add_(0, token, h @ expert.down.double().T)
    return y


class InRecipe:
    """The layer in a recipe; what activations and combine formats have in common is computed once."""

    def __init__(self, layer: Layer, recipe: Recipe, sums: str) -> None:
        self.layer, self.recipe, self.sums = layer, recipe, sums
        self.accumulate: Accumulate = "hopper" if sums == HOPPER else torch.float64
        self.x = quantized(layer.tokens, recipe.activations)
        self.experts = [Expert(*(quantized(one, recipe.weights) for one in expert)) for expert in layer.experts]
        self.fc1 = [self._linear1(number) for number in range(EXPERTS)]

    def _linear1(self, number: int) -> torch.Tensor:
        token, _ = self.layer.rows(number)
        x = Matrix(self.x.codes.view(torch.uint8)[token].view(self.x.codes.dtype), self.x.sf[token], self.x.factor)
        return torch.cat([one.sums(x, self.accumulate) for one in self.experts[number][:2]], dim=1)

    def results(self, problem: Problem) -> torch.Tensor:
        """Linear2's of every slot, bfloat16 [topk, T, H]."""
        layer, found = self.layer, torch.zeros(TOPK, *self.layer.tokens.shape, dtype=torch.bfloat16)
        for number, sums in enumerate(self.fc1):
            token, slot = layer.rows(number)
            h = activate(problem, sums, layer.weights[token, slot])
            # As calibration sets it: the largest scale of what it has seen is the largest that scales have.
            factor = nvfp4_factor(h) if self.recipe.hidden.factor else torch.ones(())
            rows = Matrix(*requantize(h, self.recipe.name, factor), factor)
            found[slot, token] = self.experts[number].down.sums(rows, self.accumulate).bfloat16()
        return found

    def y(self, results: torch.Tensor, element: str) -> torch.Tensor:
        """bfloat16 [T, H], of results that travelled as this element."""
        return combine(torch.stack([travel(one, element) for one in results]), self.layer.idx)

    def own(self, problem: Problem) -> torch.Tensor:
        """y in float64 from the recipe's weights."""
        return exact(self.layer, [Expert(*(one.values for one in expert)) for expert in self.experts], problem)


def compared(y: torch.Tensor, right: torch.Tensor, own: torch.Tensor) -> dict[str, float]:
    """`Accuracy`'s figures."""
    error = y.double() - right
    return {
        "error": float(error.norm() / right.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(y.double().flatten(), right.flatten(), dim=0)),
        "worst": float((error.norm(dim=1) / right.norm(dim=1)).max()),
        "own_weights": float((y.double() - own).norm() / own.norm()),
    }


def formulas(shape: Preset, activation: str) -> Problem:
    """A layer of this shape that activates so; SiLU with the model's clamp."""
    clamp = shape.clamp if activation == SILU else None
    return Problem(shape.hidden, shape.intermediate, EXPERTS, TOPK, activation=activation, activation_clamp=clamp)


def accuracies(name: str, tokens: int, *, all_of_it: bool) -> Iterator[Accuracy]:
    """Of one preset: SiLU and BF16 results in every recipe; `all_of_it` adds activations, E4M3 results, and Hopper's sums."""
    shape = preset(name)
    activations, elements = (list(ACTIVATIONS), list(COMBINE)) if all_of_it else ([SILU], [BF16])
    for inputs in (NORMAL, HEAVY, BALANCED):
        layer = drawn(shape, inputs, tokens)
        right = {one: exact(layer, layer.experts, formulas(shape, one)) for one in activations}
        for recipe in RECIPES.values():
            run = InRecipe(layer, recipe, EXACT)
            for activation in activations:
                problem = formulas(shape, activation)
                results, own = run.results(problem), run.own(problem)
                for element in elements:
                    figures = compared(run.y(results, element), right[activation], own)
                    yield Accuracy(name, inputs, recipe.name, activation, element, EXACT, **figures)
            if all_of_it and recipe.promoted:
                yield hopper(name, shape, inputs, recipe)


def hopper(name: str, shape: Preset, inputs: str, recipe: Recipe) -> Accuracy:
    """Sums formed as Hopper's tensor core forms them."""
    layer, problem = drawn(shape, inputs, HOPPER_TOKENS), formulas(shape, SILU)
    run = InRecipe(layer, recipe, HOPPER)
    y = run.y(run.results(problem), BF16)
    return Accuracy(name, inputs, recipe.name, SILU, BF16, HOPPER, **compared(y, exact(layer, layer.experts, problem), run.own(problem)))


def said(record: dict[str, Any]) -> str:
    """A row of a table."""
    names = ("preset", "inputs", "recipe", "activation", "combine", "sums")
    percents = " | ".join(f"{record[one] * 100:.2f}%" for one in ("error", "own_weights", "worst"))
    return f"| {' | '.join(record[one] for one in names)} | {percents} | {record['cosine']:.6f} |"


def main() -> None:
    """Prints a row of every case, and writes them as a record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--presets", default="flash,deepseek-v3,qwen3-30b-a3b,gpt-oss-120b", help="of " + ", ".join(PRESETS))
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    every = (asdict(one) for at, name in enumerate(given.presets.split(",")) for one in accuracies(name, given.tokens, all_of_it=at == 0))
    save_each(given.out, "accuracy", every, said)


if __name__ == "__main__":
    main()
