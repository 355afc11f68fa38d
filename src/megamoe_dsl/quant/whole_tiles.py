"""Weights filled up to the whole tiles that kernels load, and cut back: zeros, whose products are nothing, in the memory of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from megamoe_dsl.hardware.packed_tile import TILE_K, TILE_ROWS
from megamoe_dsl.layouts.arith import align
from megamoe_dsl.recipe import UE8M0

if TYPE_CHECKING:
    from megamoe_dsl.problem import Problem

UE8M0_ONE = 127


class MatrixShape(NamedTuple):
    """Shape of a linear's weights: matrices of `rows` x `k` below one another, gate and up of Linear1."""

    parts: int
    rows: int
    k: int


def weight_shapes(problem: Problem) -> dict[str, MatrixShape]:
    return {"fc1": MatrixShape(2, problem.intermediate, problem.hidden), "fc2": MatrixShape(1, problem.hidden, problem.intermediate)}


def tiled_shapes(problem: Problem) -> dict[str, MatrixShape]:
    return {
        name: MatrixShape(parts, align(rows, TILE_ROWS // parts), align(k, TILE_K))
        for name, (parts, rows, k) in weight_shapes(problem).items()
    }


def resize(problem: Problem, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, MatrixShape]) -> dict[str, torch.Tensor]:
    """Weights, scales and biases in checkpoint order with other shapes: what is there, zeros beyond it, and UE8M0 scales of 1."""
    form, found = problem.formats.weights, dict(tensors)
    for name, (parts, rows, k) in shapes.items():
        scales, bias = f"{name}_sf", f"{name}_bias"
        fill = UE8M0_ONE if form.scale == UE8M0 else 0
        found[name] = resized(tensors[name], parts, rows, form.row_bytes(k) // tensors[name].itemsize)
        found[scales] = resized(tensors[scales], parts, -(-rows // form.rows), form.scales_of(k), fill)
        if bias in tensors:
            found[bias] = resized(tensors[bias].unsqueeze(-1), parts, rows, 1).squeeze(-1)
    return found


def resized(values: torch.Tensor, parts: int, rows: int, columns: int, fill: int = 0) -> torch.Tensor:
    """[experts, parts * n, m] as [experts, parts * rows, columns]: of each part its first rows and columns, and `fill` where it has none.
    The tensor itself where it has that shape."""
    if values.shape[1:] == (parts * rows, columns):
        return values
    new = torch.zeros(len(values), parts, rows, columns, dtype=values.dtype, device=values.device)  # full() makes no E4M3
    if fill:
        new.fill_(fill)
    given = values.unflatten(1, (parts, -1))[:, :, :rows, :columns]
    new[:, :, : given.shape[2], : given.shape[3]] = given
    return new.flatten(1, 2)
