"""FP8 recipes of one expert's FFN, and data to weigh them on.

block128  the package's: scales per token or 128 weight rows and 128 of K, promotion to FP32 as often, a power of two per token and 128
          channels between the linears
rowwise   inputs one scale per token, weights one per output channel, the Linear1 output a single one, set beforehand; the tensor core adds
          all of K, and scales come after it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from megamoe_dsl.cases.common import block_factors
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import E4M3_MAX, FP32_SCALE_BLOCK, encode_e4m3, quantize_e4m3_f32, quantize_weight_e4m3
from megamoe_dsl.reference import Accumulate, activate, hopper_dot, linear1, linear2, requantize

CLAMP = 10.0
SWIGLU = Problem(256, 128, 1, 1, recipe="fp8xfp8", activation_clamp=CLAMP)
"""Any layer with this clamp: its activation."""
CALIBRATION_TOKENS = 64
MARGIN = 2.0
"""Of the static scale over the largest value that calibration saw: one binade, which costs a floating-point format no mantissa bit."""

OUTLIER_SHARE, OUTLIER_FACTORS = 1 / 512, (20.0, 50.0)


@dataclass(frozen=True)
class Expert:
    """BF16 tokens x [n, H] with top-k weights f32 [n], weights fc1 [2I, H], rows [gate | up], and fc2 [H, I]; `seen`, other tokens for
    calibration, and their weights."""

    x: torch.Tensor
    weight: torch.Tensor
    fc1: torch.Tensor
    fc2: torch.Tensor
    seen: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Output:
    """h [n, I]: SwiGLU times the top-k weight, before it is quantised; y [n, H]."""

    h: torch.Tensor
    y: torch.Tensor


def plain(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def with_outliers(generator: torch.Generator, tokens: int, channels: int) -> torch.Tensor:
    """A few channels 20 to 50 times larger, the same ones in all tokens; mean square 1."""
    low, high = OUTLIER_FACTORS
    factor = torch.ones(channels)
    chosen = torch.randperm(channels, generator=generator)[: round(channels * OUTLIER_SHARE)]
    factor[chosen] = torch.rand(len(chosen), generator=generator) * (high - low) + low
    return plain(generator, tokens, channels) * factor / factor.square().mean().sqrt()


def with_blocks(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    """The magnitude of each 128 x 128 block its own, over several binades, as `cases.fp8xfp8` draws weights."""
    size = FP32_SCALE_BLOCK
    factor = block_factors((rows // size, columns // size), generator)
    return plain(generator, rows, columns) * factor.repeat_interleave(size, 0).repeat_interleave(size, 1)


Draw = Callable[[torch.Generator, int, int], torch.Tensor]
DATA: dict[str, tuple[Draw, Draw]] = {
    "normal": (plain, plain),
    "outlier channels": (with_outliers, plain),
    "block magnitudes": (plain, with_blocks),
}
"""Name to what draws tokens and what draws weights."""


def draw(data: str, hidden: int, intermediate: int, tokens: int, seed: int, device: str = "cpu") -> Expert:
    """Gates and ups have a variance near 1.  Drawn on the CPU: the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    draw_tokens, draw_weights = DATA[data]
    x = draw_tokens(generator, tokens + CALIBRATION_TOKENS, hidden).bfloat16().to(device)
    weight = (torch.rand(len(x), generator=generator) * 0.75 + 0.25).to(device)
    shapes = ((2 * intermediate, hidden), (hidden, intermediate))
    fc1, fc2 = ((draw_weights(generator, *shape) * shape[1] ** -0.5).bfloat16().to(device) for shape in shapes)
    return Expert(x[:tokens], weight[:tokens], fc1, fc2, (x[tokens:], weight[tokens:]))


def hidden_values(x: torch.Tensor, weight: torch.Tensor, fc1: torch.Tensor) -> torch.Tensor:
    """h of BF16 values in float64, nothing rounded."""
    gate, up = (x.double() @ fc1.double().T).chunk(2, dim=1)
    return torch.nn.functional.silu(gate.clamp(max=CLAMP)) * up.clamp(-CLAMP, CLAMP) * weight.double()[:, None]


def unquantised(expert: Expert) -> Output:
    """What the recipes approximate."""
    h = hidden_values(expert.x, expert.weight, expert.fc1)
    return Output(h, h @ expert.fc2.double().T)


def block128(expert: Expert, sums: Accumulate) -> Output:
    h = activate(SWIGLU, linear1(*quantize_e4m3_f32(expert.x), *quantize_weight_e4m3(expert.fc1), sums), expert.weight)
    return Output(h, linear2(*requantize(h, "fp8xfp8"), *quantize_weight_e4m3(expert.fc2), sums))


def quantize_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes, and one FP32 scale per row, [rows, 1]."""
    return quantize_e4m3_f32(values, values.shape[-1])


def static_scale(expert: Expert) -> torch.Tensor:
    """Of the Linear1 output, f32 [1, 1]: `MARGIN` times the largest magnitude that the calibration tokens give unquantised, over 448."""
    return (hidden_values(*expert.seen, expert.fc1).abs().amax() * (MARGIN / E4M3_MAX)).float().view(1, 1)


def rowwise_matmul(x: torch.Tensor, x_sf: torch.Tensor, w: torch.Tensor, w_sf: torch.Tensor, sums: Accumulate) -> torch.Tensor:
    """Sums over all of K, scaled afterwards.  x, w: E4M3 [n, K], [rows, K]; x_sf, w_sf: f32, one scale per row.  Returns f32 [n, rows]."""
    total = hopper_dot(x, w) if sums == "hopper" else (x.to(sums) @ w.to(sums).T).float()
    return total * (x_sf * w_sf.T)


def rowwise(expert: Expert, sums: Accumulate) -> Output:
    gate_up = rowwise_matmul(*quantize_rows(expert.x), *quantize_rows(expert.fc1), sums)
    h = activate(SWIGLU, gate_up, expert.weight)
    scale = static_scale(expert)
    return Output(h, rowwise_matmul(encode_e4m3(h * scale.reciprocal()), scale, *quantize_rows(expert.fc2), sums).bfloat16())


RECIPES: dict[str, Callable[[Expert, Accumulate], Output]] = {"block128": block128, "rowwise": rowwise}


def distance(output: Output, other: Output) -> dict[str, float]:
    """|output - other| / |other| in the 2-norm, of h and of y."""
    pairs = {"h": (output.h.double(), other.h.double()), "y": (output.y.double(), other.y.double())}
    return {name: float((one - two).norm() / two.norm()) for name, (one, two) in pairs.items()}
