"""One expert-parallel MoE layer on this rank's GPU.

    layer = MegaMoE(problem, weights, store=ArtifactStore(folder))          on every rank
    y = layer(x, topk_idx, topk_weights)                                    x bf16 [T, hidden], T may differ between ranks and be 0
    y = layer(x, topk_idx, topk_weights, x_sf=x_sf)                         x and x_sf as `quant` makes them
    y = mega_moe(layer, x, topk_idx, topk_weights)                          the same as a function

A call launches on torch's current stream, does not synchronize, and allocates only y without `out` and a copy of int32 indices, so a CUDA
graph can capture it.  Every rank makes the same sequence of calls.  Order layers that share a buffer: one stream, or events.  Threads take
turns with a layer; its device must be the thread's current one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import torch

from ..artifact.store import ArtifactStore
from ..config_error import as_integer
from ..kernels.moe.unfused.family import stage_configs
from ..problem import Problem, ProblemError
from ..quant import ExpertWeights, new_weights, no_scales, weight_names
from ..shared_experts import SharedExperts
from ..target import Target
from .buffers import Inputs, check_output, check_weights
from .call_plan import CallPlans, Tensors
from .custom_op import check_no_gradient, is_plain_call, mega_moe_out, new_output, register, takes_tensors
from .custom_op import mega_moe as mega_moe_op
from .device_gemm import gpu_target
from .expert_plan import FewTokens
from .inputs_stage import InputsStage, ReferenceInputs
from .lost_ranks import Understudy, end_or_lose
from .preparation import Selection, compile_ahead, grid_target, layer_kernels
from .rank_kernel import WATCHDOG_NS, GivenWeights, RankKernel, ReferenceKernel
from .symmetric_memory import SymmetricBuffer, arch_of_recipe
from .watchdog import check_watchdog_ns, naming_the_wait


class MegaMoE(torch.nn.Module):
    """Holds the local experts' weights in kernel order, and kernels bound to a symmetric buffer.

    The weights are no parameters, because kernels hold their addresses: `to` leaves them alone, and `load_weights`, `load_expert` and
    `load_state_dict` replace them in place.  `state_dict` has them in checkpoint order, as the fields of `ExpertWeights`.

    weights       of the local experts, in checkpoint order on this rank's GPU; the layer copies them.  None: zeros until
                  `checkpoints.load_experts` fills them, which needs the memory only once
    store         folder of compiled kernels, by default the user's cache; with the DSL installed, missing kernels are compiled
    symmetric     a buffer to share with other layers of an equal problem; None allocates one, together with all ranks of `group`.  With
                  `SymmetricBuffer.allocate(problem, device="cpu")` of one rank the layer computes the reference on CPU tensors, slowly
    bounds        values of num_tokens_bound to prepare kernels for, besides max_tokens_per_rank
    bf16_inputs   prepare the kernel that quantizes BF16 tokens
    reserved_sms  SMs left to other streams while the layer runs, but for the few microseconds of quantizing BF16 tokens; the layer uses an
                  even number of SMs, the same for all layers on a buffer
    watchdog_ns   how long a launch may wait for another rank before it traps
    fused         False: a launch for every stage (docs/explanation/moe_stages.md), slower, with more memory and the same y to the bit.
                  True: one launch, also for a few BF16 tokens with E2M1 weights on one rank (`FewTokens`)
    shared_experts  experts of each rank that every token takes (docs/explanation/shared_experts.md): the last ones of `weights`;
                  `problem` and topk_idx do not count them

    The int32 counters `stats` wrap at 2^31, after about an hour of prefill with 8192 tokens per rank: reset them before.  A launch waits
    for other ranks on every SM it uses, so a collective on another stream needs `reserved_sms`.

    Raises `ProblemError` for arguments that do not fit, `ArtifactError` for a missing kernel.
    """

    takes_scales = takes_bound = True
    trained: tuple[torch.Tensor, ...] = ()

    def __init__(
        self,
        problem: Problem,
        weights: ExpertWeights | None = None,
        *,
        store: ArtifactStore | None = None,
        symmetric: SymmetricBuffer | None = None,
        group: Any = None,
        bounds: Sequence[int] = (),
        bf16_inputs: bool = True,
        reserved_sms: int = 0,
        watchdog_ns: int = WATCHDOG_NS,
        fused: bool = True,
        shared_experts: int = 0,
        pool_rows: int | None = None,
    ) -> None:
        super().__init__()
        shared = SharedExperts(problem, shared_experts)
        whole = shared.whole
        if weights is not None:
            check_weights(whole, weights)
        watchdog_ns = check_watchdog_ns(watchdog_ns)
        self.problem, self.shared, self.selection = problem, shared, Selection(whole, bounds)
        store = store or ArtifactStore()
        if symmetric is not None and symmetric.problem != whole:
            raise ProblemError("symmetric.problem", symmetric.problem, f"the layer's, {whole}")
        self.symmetric = SymmetricBuffer.allocate(whole, group=group, pool_rows=pool_rows) if symmetric is None else symmetric
        if pool_rows not in (None, self.symmetric.pool_rows):
            raise ProblemError("pool_rows", pool_rows, f"left out, or {self.symmetric.pool_rows} as of `symmetric`")
        device = self.symmetric.sym.device
        if weights is not None and weights.fc1.device != device:
            raise ProblemError("weights.device", weights.fc1.device, f"{device}, where the symmetric buffer is")
        at_hand = Target.typical(arch_of_recipe(problem).name) if self.symmetric.reference else gpu_target(device)
        target = grid_target(at_hand, reserved_sms)
        configs = self.selection.configs(target, pool_rows=self.symmetric.pool_rows)
        kernels: dict[Any, RankKernel | ReferenceKernel] = {}
        memory: GivenWeights = new_weights(whole, target.arch, device) if weights is None else weights
        with self.symmetric.binding(target.num_sms):
            for config in dict.fromkeys(configs.values()):
                if self.symmetric.reference:
                    kernels[config] = ReferenceKernel(config, self.symmetric, memory)
                else:
                    stages = [store.get(one) for one in ([config] if fused else stage_configs(config))]
                    kernels[config] = RankKernel(stages, self.symmetric, memory, watchdog_ns)
                memory = kernels[config].buffers
            self.kernels = {bound: kernels[config] for bound, config in configs.items()}
            self.memory = self.kernels[problem.max_tokens_per_rank].buffers
            self._inputs: InputsStage | ReferenceInputs = (
                ReferenceInputs(shared, self.memory)
                if self.symmetric.reference
                else InputsStage(shared, self.symmetric.rank, target, store, self.memory, bf16_inputs)
            )
        options: Any = {"fused": fused, "bf16_inputs": bf16_inputs, "shared_experts": shared.count}
        self.few = FewTokens.of(problem, target, store, self.memory, **options)
        self._understudy = None if self.symmetric.group is None else Understudy(self.memory, whole.num_ranks)
        self._plans = CallPlans(self._plan)
        self._cuda_index = device.index if device.type == "cuda" else None
        self.number = register(self)

    @staticmethod
    def prepare(
        problem: Problem,
        *,
        bounds: Sequence[int] | None = None,
        bf16_inputs: bool = True,
        reserved_sms: int = 0,
        fused: bool = True,
        shared_experts: int = 0,
        pool_rows: int | None = None,
        target: Target | None = None,
        store: ArtifactStore | None = None,
        jobs: int | None = None,
    ) -> int:
        """Compiles the kernels of a layer with these arguments in parallel processes, in advance; returns how many were missing.

        bounds  of the layer; None prepares for every number of tokens, so for any bounds
        target  the GPU, by default the one at hand; with a target no GPU is needed
        jobs    processes, by default one per usable core

        One process of a machine calls it while the others wait.  Raises `ProblemError`, `CompileError`, and `ArtifactError` when a kernel
        is missing and no DSL is installed.
        """
        gpu = grid_target(target, reserved_sms)
        made: Any = {"bf16_inputs": bf16_inputs, "fused": fused, "shared_experts": shared_experts, "pool_rows": pool_rows}
        kernels = layer_kernels(problem, gpu, bounds, **made)
        return compile_ahead(kernels, store, jobs)

    @takes_tensors("x", "topk_idx", "topk_weights", optional=("x_sf", "out"))
    def forward(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        *,
        x_sf: torch.Tensor | None = None,
        num_tokens_bound: SupportsIndex | None = None,
        out: torch.Tensor | None = None,
        check: bool = False,
    ) -> torch.Tensor:
        """y, bf16 [T, hidden].

        x                 bf16 [T, hidden] without x_sf; else with x_sf, both as `Inputs` has them
        topk_idx          int64 or int32 [T, topk], distinct experts per token; -1 or an index out of range masks a slot
        topk_weights      float32 [T, topk]
        num_tokens_bound  chooses the kernel: at least the tokens of every rank, and the same on every rank
        out               where y goes
        check             also refuse an index out of range or twice in a row, and NaN and infinities in x, x_sf and unmasked top-k
                          weights.  Synchronizes: not in a graph, not under torch.compile.  Unchecked, that token's y is undefined

        Raises `ProblemError` before any launch, also for a tensor that requires grad: there is no backward pass.
        """
        check_no_gradient(("x", "x_sf", "topk_weights", "out"), (x, x_sf, topk_weights, out))
        bound = -1 if num_tokens_bound is None else _bound(num_tokens_bound)
        if check:
            self._check_inputs(x, x_sf, topk_idx, topk_weights)
            Inputs(x, no_scales(x) if x_sf is None else x_sf, topk_idx, topk_weights).check_values(self.problem)
        if is_plain_call(x):
            return self.launch((x, x_sf, topk_idx, topk_weights), bound, out)
        if out is None:
            return mega_moe_op(x, x_sf, topk_idx, topk_weights, self.symmetric.order, self.number, bound)
        mega_moe_out(out, x, x_sf, topk_idx, topk_weights, self.symmetric.order, self.number, bound)
        return out

    def launch(self, tensors: Tensors, bound: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """The call itself, inside an operator or without one.  A negative bound stands for None.  Returns y, which is `out` if given."""
        kernel, few = self._plans.of(tensors, (bound,))
        if self._cuda_index is not None and self._cuda_index != torch._C._cuda_getDevice():
            self._check_current_device()
        if out is not None:
            check_output("out", out, (len(tensors[0]), self.problem.hidden), self.device)
        y = new_output(tensors[0], self.problem.hidden) if out is None else out
        if few is None or not few(tensors, y):
            self._inputs(*tensors)
            kernel(y)
        return y

    def _plan(self, tensors: Tensors, others: tuple[int]) -> tuple[RankKernel | ReferenceKernel, FewTokens | None]:
        """The kernel of a call, and the launch for few tokens if that takes it.  Raises `ProblemError` for dtypes, shapes, strides and
        devices."""
        self._check_inputs(*tensors)
        (bound,) = others
        few = self.few if self.few is not None and self.few.takes(tensors) else None
        return self.kernels[self.selection.select(len(tensors[0]), None if bound < 0 else bound)], few

    def input_buffers(self) -> Inputs:
        """Views of the symmetric buffer for quantized tokens and routing, one row per token of the capacity.

        A call with the first T rows of these as x, x_sf, topk_idx and topk_weights copies nothing.  The next call of any layer on the
        buffer overwrites them.  Raises `ProblemError` for a layer with shared experts, because a call has to add their slots.
        """
        if self.shared.count:
            raise ProblemError(
                "shared_experts", self.shared.count, "0 for a call that copies nothing: their slots are filled in on the way"
            )
        return Inputs(*(self.memory.view(name) for name in ("x", "x_sf", "topk_idx", "topk_weights")))

    def _check_inputs(self, x: torch.Tensor, x_sf: torch.Tensor | None, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Raises `ProblemError` for a dtype, shape, stride or device; reads no tensor."""
        self._inputs.check(x, x_sf, topk_idx, topk_weights)
        self._check_current_device()

    def _check_current_device(self) -> None:
        """Raises `ProblemError` unless the layer is on the current device: a launch takes that device's stream."""
        if self._cuda_index is not None and self._cuda_index != torch.cuda.current_device():
            raise ProblemError("torch.cuda.current_device()", torch.cuda.current_device(), f"{self._cuda_index}, where the layer is")

    @property
    def stats(self) -> torch.Tensor:
        """int32 [experts_per_rank + shared_experts]: tokens that each local expert has received over all calls; zero it to start again."""
        return self.memory.stats

    def load_weights(self, weights: ExpertWeights) -> None:
        """Replaces the weights, in place: captured graphs use them from now on.  Raises as the constructor does."""
        check_weights(self.shared.whole, weights)
        self.memory.load_weights(weights)

    @property
    def device(self) -> torch.device:
        return self.memory.device

    def load_expert(self, index: int, weights: ExpertWeights) -> None:
        """Replaces one local expert, in place: `weights` has El = 1 and is on the layer's device.  Raises `ProblemError`."""
        self.memory.load_expert(index, weights)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        weights = self.memory.checkpoint_weights()
        destination.update({f"{prefix}{name}": getattr(weights, name) for name in weight_names(self.problem)})

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        _, strict, missing_keys, unexpected_keys, error_msgs = others
        names = weight_names(self.problem)
        keys = [f"{prefix}{name}" for name in names]
        missing = [key for key in keys if key not in state_dict]
        missing_keys += missing
        unexpected_keys += [key for key in state_dict if strict and key.startswith(prefix) and key not in keys]
        if missing:
            return
        given = ExpertWeights(**{name: state_dict[key] for name, key in zip(names, keys, strict=True)})
        try:
            check_weights(self.shared.whole, given)
            for index in range(self.shared.whole.experts_per_rank):  # an expert at a time: they may come from another device
                self.load_expert(index, given.expert(index).map(lambda tensor: tensor.to(self.device)))
        except ValueError as error:
            error_msgs.append(f"{prefix or 'MegaMoE'}: {error}")

    def synchronize(self, limit_s: float | None = None) -> None:
        """Waits for the device.  Raises `WatchdogError` when a call of a layer on the buffer waited too long and trapped.

        limit_s  seconds that calls on torch's current stream may take, well below `watchdog_ns`; all ranks give a limit.  Past it, ranks
                 that do not report a wait count as lost, the calls end with undefined results (lost_ranks.py), and `WatchdogError` names
                 rank, phase and lost ranks.  The GPU stays usable: close the buffer with `alone=True` and make a new layer on a group of
                 the remaining ranks.  It does not help with `fused=False`
        """
        if limit_s is not None and self._understudy is not None:
            with naming_the_wait(self.memory, who=self.symmetric.who_waits):
                end_or_lose(self._understudy, self.symmetric, limit_s)
        self.symmetric.synchronize(self.memory)


def _bound(value: SupportsIndex) -> int:
    """What the operators take.  Raises `ProblemError`."""
    # torch.compile may pass an int that stands for all values: it is taken as it is, because a conversion would fix its value.
    number = value if isinstance(value, int) and not isinstance(value, bool) else as_integer(value)
    if number is None or number < 0:
        raise ProblemError("num_tokens_bound", value, "None, or at least this rank's tokens")
    return number


def mega_moe(layer: MegaMoE, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, **options: Any) -> torch.Tensor:
    """The layer as a function; arguments and errors as `MegaMoE.forward`."""
    y: torch.Tensor = layer(x, topk_idx, topk_weights, **options)
    return y
