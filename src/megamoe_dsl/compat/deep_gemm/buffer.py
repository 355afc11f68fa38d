"""The symmetric buffer as DeepGEMM's callers see it: views of the inputs, and the kernels that run on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...artifact.cache import compile_ahead
from ...artifact.store import ArtifactStore
from ...cuda_device import require_cuda
from ...kernels.moe.config import MegaMoeConfig
from ...kernels.moe.family import PreDispatchKernel
from ...kernels.moe.layouts.smem_plan import TILE_ROWS
from ...kernels.moe.layouts.symmetric import symmetric_buffer
from ...kernels.registry import find_kernel
from ...presets.compiled import configs_up_to
from ...problem import Problem, ProblemError, integer_between
from ...quant import TransformedWeights, weight_names
from ...recipe import BF16, UE8M0
from ...runtime import rank_kernel
from ...runtime.buffers import RankBuffers
from ...runtime.device_gemm import check_current, gpu_target
from ...runtime.rank_kernel import WATCHDOG_NS, RankKernel
from ...runtime.symmetric_memory import SymmetricBuffer, device_arch
from ...runtime.watchdog import check_watchdog_ns
from ...target import Target
from .names import activation_of, clamp_of, mma_type_of, refuse

_asked: int | None = None


def get_num_sms() -> int:
    """The number that `set_num_sms` has set, by default all SMs of the current device."""
    if _asked is not None:
        return _asked
    count: int = torch.cuda.get_device_properties(current_device()).multi_processor_count
    return count


def set_num_sms(num_sms: int) -> None:
    """Sets the SMs of buffers that are made later; a buffer keeps its grid.  Raises `ProblemError` unless positive."""
    global _asked
    _asked = integer_between("num_sms", num_sms, 1, 1 << 16, "a positive number of SMs")


_BY_INPUTS: WeakValueDictionary[int, SymmBuffer] = WeakValueDictionary()


def current_device() -> torch.device:
    """The current CUDA device.  Raises `ProblemError` without a GPU."""
    require_cuda("cuda")
    return torch.device("cuda", torch.cuda.current_device())


class SymmBuffer:
    """One rank's symmetric buffer; all ranks of `group` make it together.

    x             e4m3 [T, hidden], T = num_max_tokens_per_rank; of mxf4xmxf4 int8 [T, hidden / 2], two E2M1 a byte
    x_sf          SM90: float32 [T, hidden / 128]; SM100: int32 [T, hidden / 128], four UE8M0 bytes each
    topk_idx      int64 [T, topk], -1 masks a slot
    topk_weights  float32 [T, topk]
    buffer        int8, all of it

    num_shared_experts  0: shared experts of a launch are routed ones here, the last of a rank's
    mma_type      number formats, as `MMA_TYPES` has them
    activation    checked and kept; every call names its own
    base          None: memory of another buffer is not used again
    combine       element in which results travel back, bf16 or e4m3
    watchdog_ns   a launch that waits longer for another rank is trapped

    Kernels are prepared at the first call with their weights, options and bound, not while a CUDA graph is captured, and kept until
    `forget_weights` or `destroy`.  Raises `ProblemError`.
    """

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        num_shared_experts: int = 0,
        mma_type: str = "fp8xfp4",
        activation: str = "swiglu",
        base: None = None,
        *,
        combine: str = BF16,
        watchdog_ns: int = WATCHDOG_NS,
    ) -> None:
        activation_of(activation)
        refuse("num_shared_experts", num_shared_experts or None, "0: shared experts are the last of a rank's routed ones")
        refuse("base", base, "None: a buffer has memory of its own")
        for field, value, step in (("hidden", hidden, TILE_ROWS), ("intermediate_hidden", intermediate_hidden, TILE_ROWS // 2)):
            if value % step:
                raise ProblemError(field, value, f"a multiple of {step}: weights are given in whole tiles")
        device = current_device()
        arch = device_arch(device)
        self.mma, self.mma_type = mma_type_of(mma_type, arch), mma_type
        self.group, self.watchdog_ns = group, check_watchdog_ns(watchdog_ns)
        self.num_experts, self.num_topk, self.num_shared_experts = num_experts, num_topk, num_shared_experts
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.hidden, self.intermediate_hidden, self.activation = hidden, intermediate_hidden, activation
        ranks, tokens = group.size(), num_max_tokens_per_rank
        shape = (hidden, intermediate_hidden, num_experts, num_topk, ranks, tokens)
        self.problem = Problem(*shape, recipe=self.mma.recipe, combine=combine)
        self.target = Target(arch, max(2, get_num_sms() // 2 * 2), gpu_target(device).gpu)
        self.symmetric = SymmetricBuffer.allocate(self.problem, arch, group=None if ranks == 1 else group, device=device)
        self.store = ArtifactStore()
        self.buffer = self.symmetric.sym.view(torch.int8)
        choose, target = find_kernel("mega_moe").choose, self.target
        self._config = lru_cache(maxsize=None)(lambda layer, bound: choose(layer, target, bound))
        self._kernels: dict[tuple[int, ...], dict[MegaMoeConfig, RankKernel]] = {}
        self._pre_dispatch: rank_kernel.CudaKernel | None = None
        region = symmetric_buffer(self.problem, arch)
        inputs = (region.view(self.symmetric.sym, name) for name in ("x", "x_sf", "topk_idx", "topk_weights"))
        self.x, self.x_sf, self.topk_idx, self.topk_weights = inputs
        if self.problem.formats.activations.scale == UE8M0:
            self.x_sf = self.x_sf.view(torch.int32)
        if self.problem.formats.packs_activations:
            self.x = self.x.view(torch.int8)
        _BY_INPUTS[self.x.data_ptr()] = self

    def check_current(self) -> None:
        """Raises `ProblemError` on another current device than the buffer's: a launch takes that device's stream."""
        if self.symmetric.sym.is_cuda:
            check_current(self.symmetric.sym.device)

    def destroy(self) -> None:
        if self.symmetric is not None:
            self.symmetric.close()
        self._kernels.clear()
        self._pre_dispatch = None
        for name in ("symmetric", "buffer", "group", "x", "x_sf", "topk_idx", "topk_weights"):
            setattr(self, name, None)

    def forget_weights(self, l1_weights: Sequence[torch.Tensor]) -> None:
        """Frees the kernels that were prepared with these weights.  CUDA graphs that captured them must not run again."""
        address = l1_weights[0].data_ptr()
        self._kernels = {key: kernels for key, kernels in self._kernels.items() if key[0] != address}

    def layer(self, activation: str, activation_clamp: float | None, fast_math: bool, biases: bool) -> Problem:
        """What a call with these arguments computes.  Raises `ProblemError` for an activation that nothing here computes."""
        own = activation_of(activation)
        clamp = clamp_of(own, activation_clamp)
        return replace(self.problem, activation=own, activation_clamp=clamp, fast_math=fast_math, biases=biases)

    def kernel(self, weights: TransformedWeights, stats: torch.Tensor | None, layer: Problem, num_tokens_bound: int) -> RankKernel:
        """The kernel for these weights and this `layer`, prepared on first use.  Raises `ProblemError`, and `ArtifactError` if it is
        missing and cannot be compiled."""
        config = self._config(layer, num_tokens_bound)
        key = (*(getattr(weights, name).data_ptr() for name in weight_names(layer)), 0 if stats is None else stats.data_ptr())
        kernels = self._kernels.setdefault(key, {})
        if config not in kernels:
            _require_no_capture()
            if kernels:
                shared = next(iter(kernels.values())).buffers
            else:
                own = self.symmetric
                shared = RankBuffers(config, weights, own.sym, own.watchdog, rank_kernel.encode_tensor_map, stats)
            kernels[config] = RankKernel(self.store.get(config), self.symmetric, shared, self.watchdog_ns)
        return kernels[config]

    def pre_dispatch(self) -> rank_kernel.CudaKernel:
        """The kernel that quantizes BF16 tokens; errors as `kernel`."""
        if self._pre_dispatch is None:
            _require_no_capture()
            self._pre_dispatch = rank_kernel.CudaKernel(self.store.get(PreDispatchKernel().choose(self.problem, self.target, 0)))
        return self._pre_dispatch

    def prepare(
        self, activation_clamp: float | None = None, fast_math: bool = True, activation: str = "swiglu", biases: bool = False
    ) -> int:
        """Compiles the kernels of every bound into the cache, in parallel, and returns their number: no later call compiles.

        Raises as `artifact.cache.compile_ahead`.
        """
        problem = self.layer(activation, activation_clamp, fast_math, biases)
        configs = configs_up_to(problem, problem.max_tokens_per_rank, self.target)
        kernels = [*configs, PreDispatchKernel().choose(self.problem, self.target, 0)]
        compile_ahead(kernels, self.store)
        return len(kernels)


class SM90SymmBuffer(SymmBuffer):
    """`SymmBuffer` with DeepGEMM's arguments for SM90."""

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        use_fp8_dispatch: bool = True,
        activation: str = "swiglu",
        *,
        mma_type: str = "fp8xfp8",
        **options: Any,
    ) -> None:
        shape = (num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
        if not use_fp8_dispatch:
            raise ProblemError("use_fp8_dispatch", use_fp8_dispatch, "True: tokens travel in E4M3")
        super().__init__(group, *shape, mma_type=mma_type, activation=activation, **options)


get_symm_buffer_for_sm90_mega_moe = SM90SymmBuffer


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    num_shared_experts: int = 0,
    use_fp8_dispatch: bool | None = None,
    mma_type: str = "fp8xfp4",
    activation: str = "swiglu",
    *,
    combine: str = BF16,
    watchdog_ns: int = WATCHDOG_NS,
) -> SymmBuffer:
    """A buffer for the current device's architecture; all ranks of `group` together.

    group     a torch.distributed process group, or for one rank anything with `size()` and `rank()`
    mma_type  SM90: fp8xfp8 or fp8xfp4, both FP8 x FP8, or fp8xmxfp4, whose weights are MXFP4.  SM100: fp8xfp4; mxf4xmxf4, W4A4; fp8xfp8,
              MXFP8
    use_fp8_dispatch  None, or whether tokens of `mma_type` are E4M3
    combine   element in which results travel back to their token's rank: bf16, or e4m3, which DeepGEMM does not have
    watchdog_ns  how long a launch may wait for another rank before it is trapped; DeepGEMM has no such limit

    Raises `ProblemError` for what no kernel here computes, and as `SymmetricBuffer.allocate`.
    """
    arch = device_arch(current_device())
    mma_type_of(mma_type, arch)
    if use_fp8_dispatch is not None and bool(use_fp8_dispatch) != mma_type.startswith("fp8x"):
        raise ProblemError("use_fp8_dispatch", use_fp8_dispatch, f"None or {mma_type.startswith('fp8x')} with mma_type = {mma_type!r}")
    shape = (num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
    kind = SymmBuffer if arch.has_tensor_memory else SM90SymmBuffer
    options: dict[str, Any] = {"num_shared_experts": num_shared_experts, "mma_type": mma_type, "activation": activation}
    return kind(group, *shape, **options, combine=combine, watchdog_ns=watchdog_ns)


def buffer_of(x: torch.Tensor) -> SymmBuffer:
    """The buffer whose `x` this is, or begins with.  Raises `ProblemError` for another tensor."""
    found = _BY_INPUTS.get(x.data_ptr())
    if found is None or found.x is None:
        raise ProblemError(
            "buf_x", f"a tensor at {x.data_ptr():#x}", "the x of a buffer of get_symm_buffer_for_mega_moe, from its first row on"
        )
    return found


def _require_no_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        allowed = "not of a call that is the first with its weights, options and bound: call once before"
        raise ProblemError("CUDA graph", "capture", allowed)
