"""One expert-parallel MoE layer on this rank's GPU.

    layer = MegaMoE(problem, weights, store=ArtifactStore(folder))          on every rank
    y = layer(x, topk_idx, topk_weights)                                    x bf16 [T, hidden], T may differ between ranks and be 0
    y = layer(x, topk_idx, topk_weights, x_sf=x_sf)                         x and x_sf as `quant` makes them
    y = mega_moe(layer, x, topk_idx, topk_weights)                          the same as a function

A call launches on torch's current stream and neither synchronises nor allocates (but for y when `out` is not given), so it can be captured
into a CUDA graph.  Every rank makes the same sequence of calls.  Layers that share a buffer run one after another: on one stream, or
ordered by events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arch import Arch, arch_of_capability
from ..artifact.cache import cache_folder
from ..artifact.store import ArtifactStore
from ..kernels.pre_dispatch.config import PreDispatchConfig
from ..kernels.registry import find_kernel
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights
from ..target import Target
from .buffers import Inputs, RankBuffers, check_device, check_output, check_tensor, check_weights
from .cuda_kernel import CudaKernel
from .custom_op import mega_moe as mega_moe_op
from .custom_op import mega_moe_out, register
from .rank_kernel import WATCHDOG_NS, RankKernel
from .selection import Selection
from .symmetric_memory import SymmetricBuffer
from .watchdog import check_watchdog_ns


class MegaMoE(torch.nn.Module):
    """Holds the local experts' weights in kernel order, and kernels bound to a symmetric buffer.

    The weights are no parameters: kernels know them by address, so `to` and `load_state_dict` leave them alone, and `load_weights` replaces
    them.

    problem       the layer
    weights       the local experts', in checkpoint order on this rank's GPU; the layer keeps its own copy of what it reorders
    store         folder of compiled kernels, by default the cache (cache.py); missing ones are compiled when the DSL is installed
    symmetric     a buffer to share with other layers of an equal problem; None allocates one, together with all ranks of `group`
    bounds        values of num_tokens_bound to prepare kernels for, besides max_tokens_per_rank
    bf16_inputs   prepare the kernel that quantises BF16 tokens
    reserved_sms  SMs left to other streams while the layer runs, but for the few microseconds of quantising BF16 tokens; an even number of
                  SMs is used, the same for all layers on a buffer
    watchdog_ns   how long a launch may wait for another rank before it is trapped

    The counters `stats` are int32 and wrap at 2^31, after about an hour of prefill with 8192 tokens per rank: reset them before.

    A launch waits for the other ranks with a CTA on every SM it uses.  A collective, or another kernel that waits for other ranks, on
    another stream needs `reserved_sms`: without them, ranks that issue the two in different order can wait for one another until the
    watchdog traps.

    Raises `ProblemError` for arguments that do not fit, ValueError for weights, `ArtifactError` for a missing kernel.
    """

    def __init__(
        self,
        problem: Problem,
        weights: ExpertWeights,
        *,
        store: ArtifactStore | None = None,
        symmetric: SymmetricBuffer | None = None,
        group: Any = None,
        bounds: Sequence[int] = (),
        bf16_inputs: bool = True,
        reserved_sms: int = 0,
        watchdog_ns: int = WATCHDOG_NS,
    ) -> None:
        super().__init__()
        check_weights(problem, weights)
        check_watchdog_ns(watchdog_ns)
        self.problem, self.selection = problem, Selection(problem, bounds)
        store = ArtifactStore(cache_folder()) if store is None else store
        if symmetric is not None and symmetric.problem != problem:
            raise ProblemError("symmetric.problem", symmetric.problem, f"the layer's, {problem}")
        arch = device_arch(weights.fc1.device)
        self.symmetric = SymmetricBuffer.allocate(problem, arch, group) if symmetric is None else symmetric
        device = self.symmetric.sym.device
        if weights.fc1.device != device:
            raise ProblemError("weights.device", weights.fc1.device, f"{device}, where the symmetric buffer is")
        target = Target(arch, usable_sms(device, reserved_sms), gpu_name(device))
        configs = self.selection.configs(target)
        kernels: dict[Any, RankKernel] = {}
        shared: ExpertWeights | RankBuffers = weights
        self.pre_dispatch: CudaKernel | None = None
        with self.symmetric.binding(target.num_sms):
            for config in dict.fromkeys(configs.values()):
                kernels[config] = RankKernel(store.get(config), self.symmetric, shared, watchdog_ns)
                shared = kernels[config].buffers
            if bf16_inputs:
                self.pre_dispatch = CudaKernel(store.get(PreDispatchConfig.choose(problem, target)))
        self.kernels = {bound: kernels[config] for bound, config in configs.items()}
        self.memory = self.kernels[problem.max_tokens_per_rank].buffers
        self.number = register(self)

    def forward(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        *,
        x_sf: torch.Tensor | None = None,
        num_tokens_bound: int | None = None,
        padded_tokens: int | None = None,
        out: torch.Tensor | None = None,
        check: bool = False,
    ) -> torch.Tensor:
        """y, bf16 [T, hidden], or [padded_tokens, hidden].

        x                 bf16 [T, hidden] without x_sf; else e4m3 [T, hidden] with x_sf as `Inputs` has it
        topk_idx          int64 [T, topk], distinct experts per token, -1 masks a slot, as does what is no expert
        topk_weights      float32 [T, topk]
        num_tokens_bound  at least the tokens of every rank, padding included, and the same on every rank: chooses the kernel
        padded_tokens     T or more: rows of y, zero past the T-th, for a caller that needs one shape for several numbers of tokens
        out               where y goes
        check             also refuse a topk_idx that is out of range or twice in a row; this waits for the device, so neither in a graph
                          nor under torch.compile

        Raises `ProblemError` before anything is launched.
        """
        for name, value in (("num_tokens_bound", num_tokens_bound), ("padded_tokens", padded_tokens)):
            if value is not None and value < 0:
                raise ProblemError(name, value, "None, or at least this rank's tokens")
        if check:
            self._check_inputs(x, x_sf, topk_idx, topk_weights)
            Inputs(x, torch.empty(0), topk_idx, topk_weights).check_experts(self.problem)
        numbers = [-1 if value is None else value for value in (num_tokens_bound, padded_tokens)]
        if out is None:
            return mega_moe_op(x, x_sf, topk_idx, topk_weights, self.symmetric.order, self.number, *numbers)
        mega_moe_out(out, x, x_sf, topk_idx, topk_weights, self.symmetric.order, self.number, *numbers)
        return out

    def launch(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        x_sf: torch.Tensor | None,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        num_tokens_bound: int,
        padded_tokens: int,
    ) -> None:
        """What the operators do; a negative number is none."""
        tokens = self._check_inputs(x, x_sf, topk_idx, topk_weights)
        rows = tokens if padded_tokens < 0 else padded_tokens
        self.selection.check("padded_tokens", rows, tokens)
        check_output("out", y, (rows, self.problem.hidden))
        self._check_device("out", y)
        bound = self.selection.select(rows, None if num_tokens_bound < 0 else num_tokens_bound)
        if x_sf is None:
            assert self.pre_dispatch is not None
            pointers = (self.symmetric.sym.data_ptr(), x.data_ptr(), topk_idx.data_ptr(), topk_weights.data_ptr())
            if rows:
                self.pre_dispatch((*pointers, tokens, rows))
        else:
            self.memory.store(Inputs(x, x_sf, topk_idx, topk_weights), rows)
        self.kernels[bound](y)

    def _check_inputs(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> int:
        """Everything that can be said without reading a tensor.  Returns the number of tokens."""
        problem = self.problem
        if x.dim() != 2:
            raise ProblemError("x.shape", tuple(x.shape), f"(tokens, {problem.hidden})")
        tokens = x.shape[0]
        if x_sf is None:
            if self.pre_dispatch is None:
                raise ProblemError("x_sf", None, "given: the layer was made with bf16_inputs=False")
            problem.check_num_tokens(tokens, "x.shape[0]")
            check_tensor("x", x, torch.bfloat16, (tokens, problem.hidden))
            check_tensor("topk_idx", topk_idx, torch.int64, (tokens, problem.topk))
            check_tensor("topk_weights", topk_weights, torch.float32, (tokens, problem.topk))
            if x.data_ptr() % 16:
                raise ProblemError("x.data_ptr()", x.data_ptr(), "a multiple of 16")
        else:
            Inputs(x, x_sf, topk_idx, topk_weights).check_layout(problem)
        for name, tensor in {"x": x, "x_sf": x_sf, "topk_idx": topk_idx, "topk_weights": topk_weights}.items():
            if tensor is not None:
                self._check_device(name, tensor)
        return tokens

    def _check_device(self, name: str, tensor: torch.Tensor) -> None:
        """The buffer's, which is the current one: a launch takes the current device's stream."""
        device = self.symmetric.sym.device
        check_device(name, tensor, device)
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            raise ProblemError("torch.cuda.current_device()", torch.cuda.current_device(), f"{device.index}, where the layer is")

    @property
    def stats(self) -> torch.Tensor:
        """int32 [experts_per_rank]: tokens that each local expert has received over all calls; set it to zero to start again."""
        return self.memory.stats

    def load_weights(self, weights: ExpertWeights) -> None:
        """Replaces the weights, in place: captured graphs use them from now on.  Raises as the constructor does."""
        check_weights(self.problem, weights)
        self.memory.load_weights(weights)

    def synchronize(self) -> None:
        """Waits for the device.  Raises `WatchdogError` when a call of a layer on the buffer was trapped because it waited too long."""
        self.kernels[self.problem.max_tokens_per_rank].synchronize()


def gpu_name(device: torch.device) -> str:
    """What the tables of measured configurations call a GPU."""
    name: str = torch.cuda.get_device_name(device)
    return name


def device_arch(device: torch.device) -> Arch:
    """The architecture of a GPU.  Raises `ProblemError` for one that has no kernel."""
    capability = torch.cuda.get_device_capability(device)
    arch = arch_of_capability(capability)
    if arch is None or arch.name not in find_kernel("mega_moe").configs:
        raise ProblemError("device", f"{device}, compute capability {capability[0]}.{capability[1]}", "a GPU with a kernel: 9.0 or 10.0")
    return arch


def usable_sms(device: torch.device, reserved: int) -> int:
    """CTAs of the grid: one for each SM that is not reserved, an even number.  Raises `ProblemError` when fewer than two are left."""
    total = torch.cuda.get_device_properties(device).multi_processor_count
    if not 0 <= reserved <= total - 2:
        raise ProblemError("reserved_sms", reserved, f"between 0 and {total - 2}")
    return (total - reserved) // 2 * 2


def mega_moe(layer: MegaMoE, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, **options: Any) -> torch.Tensor:
    """The layer as a function; arguments and errors as `MegaMoE.forward`."""
    y: torch.Tensor = layer(x, topk_idx, topk_weights, **options)
    return y
