"""Tensors of a GEMM: what they must be, and the arguments of a launch that they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from ..blocks.gemm.problem import BF16, CONTIGUOUS, MASKED, ROW_BLOCK, GemmProblem
from ..hardware.packed_tile import TILE_BYTES, tiles_of
from ..problem import ProblemError
from ..quant.weights import stored_row
from ..recipe import E2M1
from .buffers import check_aligned, check_device, check_tensor
from .gemm_scales import TMA_ALIGNMENT, capacity_step, check_scales, check_words_aligned, kernel_scales, token_scales

OUTPUT_DTYPES = {BF16: torch.bfloat16, "f32": torch.float32}
UNPACKED_ALIGNMENT = 32


def given_where(wanted: bool, name: str, tensor: torch.Tensor | None, given: str, none: str, *own: Any) -> torch.Tensor | None:
    """A tensor that some problems have, others not.  Raises `ProblemError` unless it is there where it is wanted, and only there, as
    `check_tensor` for one with what `own` says; `given` and `none` say what is allowed."""
    if wanted != (tensor is not None):
        raise ProblemError(name, None if tensor is None else "a tensor", given if wanted else none)
    if tensor is not None and own:
        check_tensor(name, tensor, *own)
    return tensor


def check_bias(problem: GemmProblem, bias: torch.Tensor | None, device: torch.device) -> None:
    """Raises `ProblemError` unless there are biases where the problem has them, [num_groups, n], two of them aligned together."""
    wanted = bool(problem.biases)
    bias = given_where(wanted, "bias", bias, f"a {problem.biases} tensor", "None of a problem without biases")
    if bias is not None:
        check_tensor("bias", bias, OUTPUT_DTYPES[problem.biases], problem.b_lead, device, 2 * bias.element_size())


class LaunchTensors(ABC):
    """Operands and results of one launch of a GEMM."""

    d: torch.Tensor

    @abstractmethod
    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` that names the tensor and what is wrong with it, and for a problem of another kind.  Reads none."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """An upper bound of the rows of all groups together."""

    @abstractmethod
    def operands(self) -> dict[str, torch.Tensor]:
        """What a launch reads, by argument; scales as the kernel reads them, copied where they are not yet so."""

    def results(self) -> dict[str, torch.Tensor]:
        """What a launch writes, by argument."""
        return {"d": self.d}

    @abstractmethod
    def numbers(self, operands: dict[str, torch.Tensor]) -> dict[str, int]:
        """Its arguments that are no addresses of these tensors."""

    def arguments(self, operands: dict[str, torch.Tensor], counter: int) -> dict[str, int]:
        """The arguments of a launch by name; `operands` is what that method returns, `counter` an address or 0."""
        addresses = {name: tensor.data_ptr() for name, tensor in {**operands, **self.results()}.items()}
        return {**self.numbers(operands), **addresses, "counter": counter, "m": self.rows}

    def some(self, *names: str) -> dict[str, torch.Tensor]:
        """Those of these fields that are not None."""
        return {name: found for name in names if (found := getattr(self, name)) is not None}


@dataclass(frozen=True)
class GemmTensors(LaunchTensors):
    """Those of a problem whose rows lie where its kind says.

    a       float8_e4m3fn or bfloat16 [m, k], E2M1 uint8 [m, k / 2]; of a masked problem [num_groups, capacity, ...], as d
    a_sf    float32 [m, k / 128], copied unless its strides are those of `scales_by_column`; UE8M0 uint8 or float8_e8m0fnu [m, k / 32] or
            UE4M3 float8_e4m3fn [m, k / 16], copied unless they are `scale_words` of all rows together; of bfloat16 `no_scales`
    b       float8_e4m3fn or bfloat16 [n, k], E2M1 uint8 [n, k / 2], or tiles of it [ceil(n / 256), k / 128, 17408]; of a problem with
            groups [num_groups, ...]
    b_sf    float32 [ceil(n / 128), k / 128], UE8M0 [n, k / 32] or `scale_words` of them, uint8 [n, 0] of tiles; with groups
            [num_groups, ...]
    d       bfloat16 or float32 [m, n]
    groups  int32, see `GemmArguments`; None of a dense problem
    bias    float32 or bfloat16 [num_groups, n], as the problem says, of one with biases; else None
    factors float32 [1], or [num_groups]: what D is multiplied with, in number formats with such a factor; else None
    """

    a: torch.Tensor
    a_sf: torch.Tensor
    b: torch.Tensor
    b_sf: torch.Tensor
    d: torch.Tensor
    groups: torch.Tensor | None = None
    factors: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def check(self, problem: GemmProblem) -> None:
        """Raises `ProblemError` as of any launch, and for rows that do not lie as the problem's kind says."""
        lead = self.rows_shape(problem)
        acts, weights = problem.formats.activations, problem.formats.weights
        dtype, row = stored_row(acts, problem.k)
        check_tensor("a", self.a, dtype, (*lead, row))
        problem.check_rows(self.rows, "a.shape[0]")
        dtype, row = stored_row(weights, problem.k)
        groups = problem.b_lead[:-1]
        shape = (*groups, tiles_of(problem.n), problem.k_blocks, TILE_BYTES) if problem.decodes else (*problem.b_lead, row)
        check_tensor("b", self.b, dtype, (*groups, *problem.b_shape) if problem.transposed_b else shape)
        check_scales(problem, lead, self.a_sf, self.b_sf)
        check_tensor("out", self.d, OUTPUT_DTYPES[problem.output], (*lead, problem.n))
        if problem.has_groups:
            if self.groups is None:
                raise ProblemError("groups", None, f"a tensor beside {problem.kind} groups")
            entries = self.rows // ROW_BLOCK if problem.kind == CONTIGUOUS else problem.num_groups
            check_tensor("groups", self.groups, torch.int32, (entries,))
        if problem.has_factors:
            assert self.factors is not None
            check_tensor("factors", self.factors, torch.float32, (problem.num_groups,))
        check_bias(problem, self.bias, self.a.device)
        for name, tensor in self.some("a_sf", "b", "b_sf", "d", "groups", "factors").items():
            check_device("out" if name == "d" else name, tensor, self.a.device)
        self.check_addresses(problem)

    def check_addresses(self, problem: GemmProblem) -> None:
        """The part of `check` that is not the same for all tensors of a layout."""
        acts, weights = problem.formats.activations, problem.formats.weights
        unpacked = weights.element == E2M1 != acts.element and not problem.decodes
        check_aligned("a", self.a, TMA_ALIGNMENT)
        check_aligned("b", self.b, UNPACKED_ALIGNMENT if unpacked else TMA_ALIGNMENT)
        check_aligned("out", self.d, TMA_ALIGNMENT)
        for name in ("a_sf", "b_sf"):
            check_words_aligned(name, getattr(self, name))

    def rows_shape(self, problem: GemmProblem) -> tuple[int, ...]:
        """Shape of the rows of A and D.  Raises `ProblemError` for an A of another number of dimensions."""
        dims = 3 if problem.kind == MASKED else 2
        if self.a.dim() != dims:
            raise ProblemError("a.shape", tuple(self.a.shape), "[num_groups, capacity, k]" if dims == 3 else "[m, k]")
        lead = tuple(self.a.shape[:-1])
        if dims == 3 and lead[0] != problem.num_groups:
            raise ProblemError("a.shape[0]", lead[0], f"num_groups = {problem.num_groups}")
        step = capacity_step(problem)
        if dims == 3 and lead[1] % step:
            raise ProblemError("a.shape[1]", lead[1], f"a multiple of {step}: TMA fetches the scales of so many rows at least")
        return lead

    @property
    def rows(self) -> int:
        return self.a.numel() // self.a.shape[-1]

    def operands(self) -> dict[str, torch.Tensor]:
        scales = {"a_sf": token_scales(self.a_sf), "b_sf": kernel_scales(self.b_sf)}
        return {**self.some("a", "b", "groups", "factors", "bias"), **scales}

    def numbers(self, operands: dict[str, torch.Tensor]) -> dict[str, int]:
        return {"groups": 0, "a_sf_ld": operands["a_sf"].stride(0)}
