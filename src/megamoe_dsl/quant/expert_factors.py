"""Factors of NVFP4, one for each matrix: from those of a checkpoint to those that kernels read."""

from __future__ import annotations

import torch

from megamoe_dsl.problem import ProblemError
from megamoe_dsl.recipe import ExpertFactors

SMALLEST, LARGEST = 2.0**-60, 2.0**60
"""Bounds of factors: what kernels compute of factors between them stays a normal FP32 number."""


def expert_factors(x: torch.Tensor | float, w1: torch.Tensor, hidden: torch.Tensor | float, w2: torch.Tensor) -> torch.Tensor:
    """Factors of a layer in NVFP4, made once from a checkpoint's: float32 [5, E], on the device of w1; an `ExpertWeights` has them
    transposed.

    x       of tokens, Linear1's input_scale: one number, or those of all experts; the largest counts, as tokens are quantized once
    w1      float32 [E], or [E, 2], of gate and of up: weight_scale_2
    hidden  of activated gate and up, Linear2's input_scale: one number, or [E]
    w2      float32 [E], weight_scale_2 of Linear2

    A factor is amax / (448 * 6) of what it is of (`quant.nvfp4_factor`); where a checkpoint has 448 * 6 / amax it is one over that.

    Raises `ProblemError`, which names the argument, for shapes that do not fit, and for what is no number between 2^-60 and 2^60.  Reads
    the tensors, and so waits for their device.
    """
    if w1.dim() not in (1, 2) or (w1.dim() == 2 and w1.shape[1] != 2):
        raise ProblemError("w1.shape", tuple(w1.shape), "[num_experts] or [num_experts, 2]")
    gate, up = w1.T if w1.dim() == 2 else (w1, w1)
    experts, found = tuple(gate.shape), {}
    for name, given in {"x": x, "w1": gate, "w1 of up": up, "hidden": hidden, "w2": w2}.items():
        factor = torch.as_tensor(given, dtype=torch.float32, device=w1.device)
        if not factor.numel() or not bool(((factor >= SMALLEST) & (factor <= LARGEST)).all()):
            raise ProblemError(name, factor.flatten()[:4].tolist(), "numbers between 2^-60 and 2^60")
        if name == "x":
            factor = factor.amax()
        if name in ("x", "hidden") and factor.numel() == 1:
            factor = factor.reshape(()).expand(experts)
        if tuple(factor.shape) != experts:
            raise ProblemError(f"{name}.shape", tuple(factor.shape), f"{experts}, as of w1")
        found[name] = factor
    tokens, h = found["x"], found["hidden"]
    return torch.stack(ExpertFactors(tokens, tokens * found["w1"], tokens * found["w1 of up"], h, h * found["w2"]))
