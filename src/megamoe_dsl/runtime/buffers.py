"""Memory of one rank: symmetric buffer, weights in kernel order, and small tables; checks of tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from .. import quant
from ..hardware.tensor_map import TensorMap
from ..kernels.moe.layouts.smem_plan import WAITS
from ..kernels.moe.unfused.config import LayerConfig
from ..kernels.registry import kernel_of
from ..layouts.records import trace_buffer
from ..problem import Problem, ProblemError, integer_between
from ..quant import ExpertWeights, TransformedWeights, weight_names
from ..recipe import E2M1
from ..reference.routing import check_experts
from .watchdog import new_record

ALIGNMENT = 16
"""Bytes, of y and of BF16 tokens."""


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtypes: torch.dtype | Sequence[torch.dtype],
    shape: tuple[int, ...],
    device: torch.device | None = None,
    alignment: int = 1,
    *,
    strided: bool = False,
) -> None:
    """Raises `ProblemError` unless dtype (one of `dtypes`) and shape match, and the tensor is contiguous (unless `strided`), on `device`
    (if given), and aligned to `alignment` bytes."""
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    if tensor.dtype not in allowed:
        raise ProblemError(f"{name}.dtype", tensor.dtype, " or ".join(map(str, allowed)))
    if tuple(tensor.shape) != shape:
        raise ProblemError(f"{name}.shape", tuple(tensor.shape), str(shape))
    if not (strided or tensor.is_contiguous()):
        raise ProblemError(f"{name}.stride()", tensor.stride(), "contiguous")
    if device is not None:
        check_device(name, tensor, device)
    if alignment > 1:  # fake tensors have no address
        check_aligned(name, tensor, alignment)


def check_dims(name: str, tensor: torch.Tensor, dims: int, allowed: str) -> None:
    """Raises `ProblemError`, which says what is `allowed`, unless the tensor has `dims` dimensions."""
    if tensor.dim() != dims:
        raise ProblemError(f"{name}.shape", tuple(tensor.shape), allowed)


def check_aligned(name: str, tensor: torch.Tensor, alignment: int) -> None:
    """Raises `ProblemError` unless the tensor's address is a multiple of `alignment` bytes."""
    if tensor.data_ptr() % alignment:
        raise ProblemError(f"{name}.data_ptr()", tensor.data_ptr(), f"a multiple of {alignment}")


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises `ProblemError` unless the tensor is on this device."""
    if tensor.device != device:
        raise ProblemError(f"{name}.device", tensor.device, str(device))


def check_finite(name: str, values: torch.Tensor) -> None:
    """Raises `ProblemError` that names the index of the first NaN or infinity; waits for the device."""
    found = quant.not_finite(values).nonzero()
    if len(found):
        place = found[0].tolist()
        allowed = "a UE8M0 byte below 255, which is NaN" if values.dtype == torch.uint8 else "finite"
        raise ProblemError(f"{name}{place}", values[tuple(place)].float().item(), allowed)


@dataclass(frozen=True)
class Inputs:
    """Tokens of one rank, T of them.

    x             e4m3 [T, hidden]; of E2M1 uint8 [T, hidden / 2], packed, low nibble first; bf16xbf16: bf16 [T, hidden]
    x_sf          K-major; on SM100: uint8 or float8_e8m0fnu [T, hidden / 32]; nvfp4xnvfp4: float8_e4m3fn [T, hidden / 16], with the factor
                  of x that the weights' `factors` have; on SM90: float32 [T, hidden / 128]; bf16xbf16: `no_scales`
    topk_idx      int64 or int32 [T, topk], distinct experts per token, -1 masks a slot
    topk_weights  float32 [T, topk]

    `check` refuses NaN and infinities.  Unchecked, they make that token's output undefined, and no other token's.
    """

    x: torch.Tensor
    x_sf: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "x_sf", quant.ue8m0_bytes(self.x_sf))

    @property
    def num_tokens(self) -> int:
        return self.x.shape[0]

    def check(self, problem: Problem, device: torch.device, owner: str = "") -> None:
        """`check_layout` and `check_values`; errors name the tensor with the prefix `owner`."""
        self.check_layout(problem, owner, device)
        self.check_values(problem, owner)

    def check_layout(self, problem: Problem, owner: str = "", device: torch.device | None = None) -> None:
        """The part of `check` that reads no tensor."""
        check_layout(problem, owner, self.x, self.x_sf, self.topk_idx, self.topk_weights, device)

    def check_values(self, problem: Problem, owner: str = "") -> None:
        """Raises as `check_experts`, and `ProblemError` for NaN or an infinity in x, x_sf, or unmasked top-k weights."""
        check_experts(problem, f"{owner}topk_idx", self.topk_idx)
        if problem.formats.activations.element != E2M1:  # has neither NaN nor infinity
            check_finite(f"{owner}x", self.x)
        check_finite(f"{owner}x_sf", self.x_sf)
        check_finite(f"{owner}topk_weights", self.topk_weights.masked_fill(self.topk_idx < 0, 0.0))


def check_output(name: str, y: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raises `ProblemError` unless the kernel's bulk stores can write y: bf16, contiguous, on the device, 16-byte aligned."""
    check_tensor(name, y, torch.bfloat16, shape, device, ALIGNMENT)


def check_layout(
    problem: Problem,
    owner: str,
    x: torch.Tensor,
    x_sf: torch.Tensor | None,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    device: torch.device | None = None,
) -> None:
    """Raises `ProblemError` that names the tensor, with the prefix `owner`, for a dtype, shape, stride or other device than `device`; of
    BF16 tokens (x_sf is None) also for an address.  Reads no tensor."""
    dtype, width = (torch.bfloat16, problem.hidden) if x_sf is None else quant.input_row(problem)
    check_dims(f"{owner}x", x, 2, f"(tokens, {width})")
    tokens = problem.check_num_tokens(len(x), f"{owner}x.shape[0]")
    check_tensor(f"{owner}x", x, dtype, (tokens, width), device)
    if x_sf is not None:
        scales = problem.formats.activations.scales_of(problem.hidden)
        check_tensor(f"{owner}x_sf", quant.ue8m0_bytes(x_sf), quant.input_layout(problem)[0], (tokens, scales), device)
    check_tensor(f"{owner}topk_idx", topk_idx, quant.INDEX_DTYPES, (tokens, problem.topk), device)
    check_tensor(f"{owner}topk_weights", topk_weights, torch.float32, (tokens, problem.topk), device)
    if x_sf is None:
        check_aligned(f"{owner}x", x, ALIGNMENT)


def check_weights(problem: Problem, weights: ExpertWeights, *, finite: bool = False) -> None:
    """Raises `ProblemError` unless these are weights of one rank, all on one device; with `finite`, which reads all weights and waits for
    the device, also for NaN and infinities."""
    if not isinstance(weights, ExpertWeights):
        raise ProblemError("weights", type(weights).__name__, "an ExpertWeights")
    weights.validate(problem)
    for name in weight_names(problem)[1:]:
        if getattr(weights, name).device != weights.fc1.device:
            raise ProblemError(f"weights.{name}.device", getattr(weights, name).device, f"{weights.fc1.device}, where weights.fc1 is")
    for name in weight_names(problem) if finite else ():
        values = getattr(weights, name)
        if values.dtype != torch.uint8 or name.endswith("_sf"):  # packed E2M1 has neither
            check_finite(f"weights.{name}", values)


def own(new: TransformedWeights, given: ExpertWeights) -> TransformedWeights:
    """Transformed weights, contiguous and without memory of the given ones, because `load_weights` writes into them."""
    tensors = {name: tensor for name, tensor in vars(new).items() if tensor is not None}
    kept = {name: tensor.data_ptr() != getattr(given, name).data_ptr() for name, tensor in tensors.items()}
    return TransformedWeights(**{n: t if kept[n] else t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()})


class RankBuffers:
    """Everything one rank's kernel reads and writes, on any torch device.  `sym`, `watchdog` and `stats` are allocated unless given.

    sym       uint8, the symmetric buffer, zero before the first launch
    weights   the local experts' weights in kernel order: a copy of an `ExpertWeights`, or the tensors of a `TransformedWeights`
    maps      uint8 table of tensor maps, made by `encode`
    watchdog  the record of a wait that exceeded its limit (runtime/watchdog.py)
    stats     int32 [experts_per_rank], tokens that each local expert has received
    results   memory between the stages of an unfused layer, which share it; empty for the fused kernel
    trace     stamps of a traced kernel (layouts/records.py), int64 [num_sms, warps, stamps, 2]; empty for others
    """

    def __init__(
        self,
        config: LayerConfig,
        weights: ExpertWeights | TransformedWeights,
        sym: torch.Tensor | None = None,
        watchdog: torch.Tensor | None = None,
        encode: Callable[[TensorMap], bytes] = TensorMap.encode,
        stats: torch.Tensor | None = None,
    ) -> None:
        self.config = config
        self.encode = encode
        self.region = config.symmetric
        device = weights.fc1.device
        self.sym = torch.zeros(self.region.size, dtype=torch.uint8, device=device) if sym is None else sym
        if isinstance(weights, ExpertWeights):
            weights = own(quant.transform_weights(config.problem, config.arch, weights), weights)
        self.weights = weights
        self.watchdog = new_record(device) if watchdog is None else watchdog
        self.stats = torch.zeros(config.problem.experts_per_rank, dtype=torch.int32, device=device) if stats is None else stats

    @cached_property
    def maps(self) -> torch.Tensor:
        """The table of tensor maps, encoded once."""
        addresses = {name: self.address(name) for name in ("sym", *weight_names(self.problem))}
        table = b"".join(self.encode(m) for m in self.config.tensor_maps(addresses["sym"], addresses))
        # Copied, because torch's allocations have the 64-byte alignment that tensor maps need.
        return torch.frombuffer(bytearray(table), dtype=torch.uint8).clone().to(self.sym.device)

    def address(self, name: str) -> int:
        """Address for the kernel's argument of this name."""
        tensor: torch.Tensor = getattr(self.weights if hasattr(self.weights, name) else self, name)
        return tensor.data_ptr()

    @cached_property
    def trace(self) -> torch.Tensor:
        config = self.config
        shape = trace_buffer(config.num_sms, config.num_threads // 32)["stamps"].field.shape if config.trace else (0,)
        return torch.zeros(shape, dtype=torch.int64, device=self.sym.device)

    @cached_property
    def results(self) -> torch.Tensor:
        region = getattr(self.config, "results", None)
        return torch.empty(region.size if region else 0, dtype=torch.uint8, device=self.sym.device)

    def rebound(self, config: LayerConfig, sym: torch.Tensor, watchdog: torch.Tensor | None = None) -> RankBuffers:
        """Buffers for another kernel or capacity of the same layer, which share weights and statistics, results of stages if the capacity
        is the same, and the record unless another is given."""
        shares = config.symmetric == self.region and len(self.results)
        other = copy.copy(self)
        other.config, other.sym, other.region = config, sym, config.symmetric
        other.watchdog = self.watchdog if watchdog is None else watchdog
        for stale in ("maps", "trace", *(() if shares else ("results",))):
            vars(other).pop(stale, None)
        return other

    def load_weights(self, weights: ExpertWeights) -> None:
        """Replaces the weights in place."""
        new = quant.transform_weights(self.problem, self.config.arch, weights)
        for name in weight_names(self.problem):
            getattr(self.weights, name).copy_(getattr(new, name))

    @property
    def problem(self) -> Problem:
        return self.config.problem

    @property
    def device(self) -> torch.device:
        return self.weights.fc1.device

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces a local expert in place, by an `ExpertWeights` with El = 1 on the device.  Raises `ProblemError` for an index, a device,
        or weights that do not fit."""
        count = self.problem.experts_per_rank
        place = integer_between("index", index, 0, count - 1, f"between 0 and experts_per_rank - 1 = {count - 1}")
        check_weights(quant.single_expert(self.problem), weights)
        check_device("weights.fc1", weights.fc1, self.device)
        quant.place_expert(self.weights, place, count, quant.transform_expert(self.problem, self.config.arch, weights))

    def checkpoint_weights(self) -> ExpertWeights:
        """The weights in checkpoint order; tensors whose order does not change are not copied."""
        return quant.inverse_transform_weights(self.problem, self.config.arch, self.weights)

    def arguments(self, peers: int, y: int, num_tokens: int, rank: int, watchdog_ns: int) -> tuple[int, ...]:
        """Kernel arguments in order (kernels/moe/arguments.py); pointers as integers."""
        values = {"peers": peers, "y": y, "num_tokens": num_tokens, "rank": rank, "watchdog_ns": watchdog_ns}
        names = kernel_of(self.config).arguments(self.config).names
        return tuple(values[name] if name in values else self.address(name) for name in names)

    def view(self, name: str) -> torch.Tensor:
        return self.region.view(self.sym, name)

    def load(self, inputs: Inputs) -> None:
        """Copies a rank's tokens into the symmetric buffer, after checking them."""
        inputs.check(self.config.problem, self.sym.device)
        self.store(inputs)

    def store(self, inputs: Inputs) -> None:
        for name in ("x", "x_sf", "topk_idx", "topk_weights"):
            rows, given = self.view(name)[: inputs.num_tokens], getattr(inputs, name)
            rows[:, : given.shape[1]] = given
            rows[:, given.shape[1] :] = 0  # padding of scales

    def watchdog_message(self) -> str | None:
        """Describes the recorded wait; None when no wait exceeded its limit."""
        return WAITS.describe(self.watchdog.tolist())
