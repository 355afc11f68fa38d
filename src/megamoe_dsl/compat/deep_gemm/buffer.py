"""The symmetric buffer as DeepGEMM's callers see it: views of the inputs, and the kernels that run on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...artifact.cache import cache_folder, load_or_compile_all
from ...artifact.store import ArtifactStore
from ...cuda_device import require_cuda
from ...kernels.moe.config import MegaMoeConfig
from ...kernels.moe.layouts.symmetric import symmetric_buffer
from ...kernels.moe.layouts.tile import TILE_ROWS
from ...kernels.moe.pre_dispatch.config import PreDispatchConfig
from ...kernels.registry import default_recipe, find_kernel
from ...presets.compiled import configs_up_to
from ...problem import Problem, ProblemError, integer_between
from ...quant import WEIGHT_NAMES, TransformedWeights
from ...recipe import UE8M0
from ...runtime import rank_kernel
from ...runtime.buffers import RankBuffers
from ...runtime.layer import gpu_name
from ...runtime.rank_kernel import WATCHDOG_NS, RankKernel
from ...runtime.symmetric_memory import SymmetricBuffer, device_arch
from ...runtime.watchdog import check_watchdog_ns
from ...target import Target

_asked: int | None = None


def get_num_sms() -> int:
    """Those asked for, else all of the current device."""
    if _asked is not None:
        return _asked
    count: int = torch.cuda.get_device_properties(current_device()).multi_processor_count
    return count


def set_num_sms(num_sms: int) -> None:
    """For buffers that are made from now on: a buffer keeps the grid that it is made with.  Raises `ProblemError` unless positive."""
    global _asked
    _asked = integer_between("num_sms", num_sms, 1, 1 << 16, "a positive number of SMs")


_BY_INPUTS: WeakValueDictionary[int, SymmBuffer] = WeakValueDictionary()


def current_device() -> torch.device:
    """Raises `ProblemError` where there is none."""
    require_cuda("cuda")
    return torch.device("cuda", torch.cuda.current_device())


class SymmBuffer:
    """One rank's symmetric buffer; all ranks of `group` make it together.

    x             e4m3 [T, hidden], T = num_max_tokens_per_rank
    x_sf          SM90: float32 [T, hidden / 128]; SM100: int32 [T, hidden / 128], four UE8M0 bytes each
    topk_idx      int64 [T, topk], -1 masks a slot
    topk_weights  float32 [T, topk]
    buffer        int8, all of it

    A launch that waits longer than `watchdog_ns` for another rank is trapped.
    Kernels are prepared at the first call with their weights, options and bound, which must not be while a CUDA graph is captured, and are
    kept, with these weights, until `forget_weights` or `destroy`.

    Raises `ProblemError`.
    """

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        watchdog_ns: int = WATCHDOG_NS,
    ) -> None:
        for field, value, step in (("hidden", hidden, TILE_ROWS), ("intermediate_hidden", intermediate_hidden, TILE_ROWS // 2)):
            if value % step:
                raise ProblemError(field, value, f"a multiple of {step}: weights are given in whole tiles")
        self.group, self.watchdog_ns = group, check_watchdog_ns(watchdog_ns)
        self.num_experts, self.num_topk = num_experts, num_topk
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.hidden, self.intermediate_hidden = hidden, intermediate_hidden
        device = current_device()
        arch = device_arch(device)
        ranks = group.size()
        recipe = default_recipe(find_kernel("mega_moe"), arch)
        self.problem = Problem(hidden, intermediate_hidden, num_experts, num_topk, ranks, num_max_tokens_per_rank, recipe=recipe)
        self.target = Target(arch, max(2, get_num_sms() // 2 * 2), gpu_name(device))
        self.symmetric = SymmetricBuffer.allocate(self.problem, arch, group=None if ranks == 1 else group, device=device)
        self.store = ArtifactStore(cache_folder())
        self.buffer = self.symmetric.sym.view(torch.int8)
        self._configs: dict[tuple[float | None, bool, int], MegaMoeConfig] = {}
        self._kernels: dict[tuple[int, ...], dict[MegaMoeConfig, RankKernel]] = {}
        self._pre_dispatch: rank_kernel.CudaKernel | None = None
        region = symmetric_buffer(self.problem, arch)
        inputs = (region.view(self.symmetric.sym, name) for name in ("x", "x_sf", "topk_idx", "topk_weights"))
        self.x, self.x_sf, self.topk_idx, self.topk_weights = inputs
        if self.problem.formats.activations.scale == UE8M0:
            self.x_sf = self.x_sf.view(torch.int32)
        _BY_INPUTS[self.x.data_ptr()] = self

    def destroy(self) -> None:
        """Frees the buffer and its kernels; all ranks together."""
        if self.symmetric is not None:
            self.symmetric.close()
        self._kernels.clear()
        self._pre_dispatch = None
        for name in ("symmetric", "buffer", "group", "x", "x_sf", "topk_idx", "topk_weights"):
            setattr(self, name, None)

    def forget_weights(self, l1_weights: Sequence[torch.Tensor]) -> None:
        """Lets go of weights that are no longer used, and of the kernels that were prepared with them; captured graphs of theirs die."""
        address = l1_weights[0].data_ptr()
        self._kernels = {key: kernels for key, kernels in self._kernels.items() if key[0] != address}

    def kernel(
        self,
        weights: TransformedWeights,
        stats: torch.Tensor | None,
        activation_clamp: float | None,
        fast_math: bool,
        num_tokens_bound: int,
    ) -> RankKernel:
        """The kernel for these weights and options, prepared now if need be.  Raises `ProblemError`, and `ArtifactError` for want of a
        compiler."""
        config = self._config(activation_clamp, fast_math, num_tokens_bound)
        key = (
            *(getattr(weights, name).data_ptr() for name in WEIGHT_NAMES),
            0 if stats is None else stats.data_ptr(),
        )
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
            self._pre_dispatch = rank_kernel.CudaKernel(self.store.get(PreDispatchConfig.choose(self.problem, self.target)))
        return self._pre_dispatch

    def prepare(self, activation_clamp: float | None = None, fast_math: bool = True) -> int:
        """Has the kernels of every bound compiled in the cache, in parallel, and returns how many there are: no later call compiles.

        Raises as `artifact.cache.load_or_compile_all`.
        """
        problem = replace(self.problem, activation_clamp=activation_clamp, fast_math=fast_math)
        configs = configs_up_to(problem, problem.max_tokens_per_rank, self.target)
        return len(load_or_compile_all([*configs, PreDispatchConfig.choose(self.problem, self.target)]))

    def _config(self, activation_clamp: float | None, fast_math: bool, bound: int) -> MegaMoeConfig:
        key = (activation_clamp, fast_math, bound)
        if key not in self._configs:
            problem = replace(self.problem, activation_clamp=activation_clamp, fast_math=fast_math)
            self._configs[key] = find_kernel("mega_moe").choose(problem, self.target, bound)
        return self._configs[key]


class SM90SymmBuffer(SymmBuffer):
    """The same, on SM90: the name that DeepGEMM's callers know."""


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
    watchdog_ns: int = WATCHDOG_NS,
) -> SymmBuffer:
    """A buffer for the current device's architecture; all ranks of `group` together.

    group     a torch.distributed process group, or for one rank anything with `size()` and `rank()`
    mma_type  begins with fp8; the formats are the architecture's, as in the wheel
    watchdog_ns  how long a launch may wait for another rank before it is trapped; DeepGEMM has no such limit

    Raises `ProblemError` for what no kernel here computes, and as `SymmetricBuffer.allocate`.
    """
    _check_options(num_shared_experts, use_fp8_dispatch, mma_type, activation)
    kind = SymmBuffer if device_arch(current_device()).has_tensor_memory else SM90SymmBuffer
    return kind(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, watchdog_ns)


def get_symm_buffer_for_sm90_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: bool = True,
    activation: str = "swiglu",
    num_shared_experts: int = 0,
    watchdog_ns: int = WATCHDOG_NS,
) -> SM90SymmBuffer:
    """The SM90 form of `get_symm_buffer_for_mega_moe`, with DeepGEMM's arguments."""
    _check_options(num_shared_experts, use_fp8_dispatch, "fp8xfp8", activation)
    return SM90SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, watchdog_ns)


def buffer_of(x: torch.Tensor) -> SymmBuffer:
    """The buffer whose `x` this is, or begins with.  Raises `ProblemError` for another tensor."""
    found = _BY_INPUTS.get(x.data_ptr())
    if found is None or found.x is None:
        raise ProblemError(
            "buf_x", f"a tensor at {x.data_ptr():#x}", "the x of a buffer of get_symm_buffer_for_mega_moe, from its first row on"
        )
    return found


def check_swiglu(activation: str) -> None:
    """Raises `ProblemError` for another activation."""
    if activation != "swiglu":
        raise ProblemError("activation", activation, "'swiglu'")


def _check_options(num_shared_experts: int, use_fp8_dispatch: bool | None, mma_type: str, activation: str) -> None:
    check_swiglu(activation)
    if num_shared_experts:
        raise ProblemError("num_shared_experts", num_shared_experts, "0: shared experts are not fused")
    if use_fp8_dispatch is False:
        raise ProblemError("use_fp8_dispatch", use_fp8_dispatch, "True or None")
    if not mma_type.startswith("fp8x"):
        raise ProblemError("mma_type", mma_type, "'fp8xfp4' or 'fp8xfp8'")


def _require_no_capture() -> None:
    if torch.cuda.is_current_stream_capturing():
        allowed = "not of a call that is the first with its weights, options and bound: call once before"
        raise ProblemError("CUDA graph", "capture", allowed)
