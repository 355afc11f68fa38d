"""One expert-parallel MoE layer on this rank's GPU, with the caller's own activation, or in BF16 the problem's.

    layer = EpMoE(problem, weights, activation=lambda rows: silu(rows[:, :I]) * rows[:, I:])       on every rank
    y = layer(x, topk_idx, topk_weights)                                                         x bf16 [T, hidden]

A call launches on torch's current stream.  Every rank makes the same sequence of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any

import torch

from ...artifact.artifact import Artifact
from ...artifact.store import ArtifactStore
from ...blocks.gemm.problem import DOT_COLUMNS
from ...kernels.moe.halves.config import DispatchGemmConfig, RoutingTablesConfig
from ...kernels.moe.halves.gemm_part import ACTIVATED, STORED
from ...kernels.moe.halves.layouts.symmetric import Kept, symmetric_buffer
from ...problem import Problem, ProblemError
from ...quant import ExpertWeights, quantize
from ...target import Target
from ..buffers import Inputs, check_device, check_output, check_weights
from ..cuda_kernel import CudaKernel, encode_tensor_map
from ..custom_op import asks_for_gradients, check_no_gradient
from ..device_gemm import check_current, gpu_target
from ..expert_gradients import MainGrads, check_main_grads
from ..preparation import compile_ahead, grid_target, halves_kernels
from ..rank_kernel import WATCHDOG_NS
from ..symmetric_memory import SymmetricBuffer
from ..watchdog import check_watchdog_ns
from .buffers import Activation, EpBuffers, RowActivations
from .routing import check_scatter_indices
from .training import NO_TOTALS, Gradients, Routed, train


class EpMoE(torch.nn.Module):
    """Two launches bound to a symmetric buffer: dispatch and Linear1, Linear2 and combine; in between the caller's activation.

    problem      the layer; its recipe is one that the kernels have for the GPU
    weights      of the local experts, in checkpoint order on this rank's GPU; the layer keeps no copy
    activation   maps Linear1's rows (`Activation`), for example with a LoRA or a norm.  In a captured graph it gets all rows of the pool,
                 else the rows in use, and the host waits for their number.  None, in bf16xbf16: the kernels compute the problem's
    store        folder of compiled kernels, by default the cache
    symmetric    a buffer of these kernels (kernels/moe/halves/layouts/symmetric.py); None allocates one with all ranks of `group`.
                 Layers may share one if their kernels have the same fields, because launches leave counters for the next launch
    group        of `problem.num_ranks` ranks, the default group without one
    dispatch, combine   fields that replace those of the kernels' configurations
    watchdog_ns  how long a launch may wait for another rank before it is trapped

    Raises `ProblemError` and `ConfigError` for arguments that do not fit, `ArtifactError` for a missing kernel.
    """

    def __init__(
        self,
        problem: Problem,
        weights: ExpertWeights,
        *,
        activation: Activation | None = None,
        store: ArtifactStore | None = None,
        symmetric: SymmetricBuffer | None = None,
        group: Any = None,
        dispatch: Mapping[str, Any] | None = None,
        combine: Mapping[str, Any] | None = None,
        watchdog_ns: int = WATCHDOG_NS,
    ) -> None:
        super().__init__()
        check_weights(problem, weights)
        self.problem, self.activation, watchdog_ns = problem, activation, check_watchdog_ns(watchdog_ns)
        self.takes_scales, self.takes_bound = problem.formats.scaled, False
        store = store or ArtifactStore()
        device, self.activates = weights.fc1.device, activation is None
        dispatch = {**(dispatch or {}), "gate_up": ACTIVATED if self.activates else STORED}
        self.dispatch_config, self.combine_config, *_ = halves_kernels(problem, grid_target(gpu_target(device)), dispatch, combine)
        keeps = max(self.dispatch_config.keeps, self.combine_config.keeps)
        region = symmetric_buffer(problem, keeps)
        self.symmetric = SymmetricBuffer.allocate(problem, group=group, region=region) if symmetric is None else symmetric
        if self.symmetric.num_bytes not in {symmetric_buffer(problem, one).size for one in Kept if one >= keeps}:
            raise ProblemError("symmetric.num_bytes", self.symmetric.num_bytes, f"{region.size}, of these kernels for this problem")
        check_device("weights.fc1", weights.fc1, self.symmetric.sym.device)
        self.check_others()
        self.memory = EpBuffers(problem, weights, self.symmetric.sym, self.symmetric.watchdog, keeps=keeps)
        self.acts = RowActivations.empty(problem, device)
        self._nowhere = torch.empty(8, dtype=torch.bfloat16, device=device)
        self.watchdog_ns = watchdog_ns
        self._tables: dict[DispatchGemmConfig, CudaKernel] = {}
        self.store = store
        self._dispatch, self._combine = (self.bind(store.get(one)) for one in (self.dispatch_config, self.combine_config))
        self.tables_for(self.dispatch_config)
        self.untraced_call = self.train_call if problem.formats.scaled else torch.compiler.disable(self.train_call)
        self.symmetric.halves = self.dispatch_config, self.combine_config  # last: what could not be made binds no other layer

    @staticmethod
    def prepare(
        problem: Problem,
        *,
        dispatch: Mapping[str, Any] | None = None,
        combine: Mapping[str, Any] | None = None,
        target: Target | None = None,
        store: ArtifactStore | None = None,
        jobs: int | None = None,
        train: bool = False,
    ) -> int:
        """Compiles the kernels of a layer with these arguments in advance, as `MegaMoE.prepare`; with `train` also those of its backward
        pass.  Raises as that, and `ConfigError`."""
        return compile_ahead(halves_kernels(problem, grid_target(target), dispatch, combine, train), store, jobs)

    def check_others(self) -> None:
        """Raises `ProblemError` if kernels of other layers on this symmetric buffer have other fields."""
        own = self.dispatch_config, self.combine_config
        for config, other in zip(own, self.symmetric.halves or own, strict=True):
            for one in fields(config):
                value, wanted = getattr(config, one.name), getattr(other, one.name)
                if value != wanted:
                    allowed = f"{wanted!r}, as on this symmetric buffer before: launches leave counters for the next one"
                    raise ProblemError(f"{config.launch.name.lower()}.{one.name}", value, allowed)

    def bind(self, artifact: Artifact) -> CudaKernel:
        """A kernel bound to this layer's memory, tensor maps included; a call sets y and the number of tokens."""
        kernel, config, others = CudaKernel(artifact), artifact.config, {"num_tokens": 0}
        if isinstance(config, DispatchGemmConfig):
            pool = self.acts.values.data_ptr()
            own = {name: pool if name == "weighted" else 0 for name in config.row_arguments}  # a call says where the others are
            others = {"out": self.rows.data_ptr() if config.transposed == self.activates else pool, **own}
        elif not isinstance(config, RoutingTablesConfig):
            acts = RowActivations(self.rows, self.acts.scales) if config.transposed else self.acts
            others |= {"y": self._nowhere.data_ptr(), **acts.places}
        peers, rank = self.symmetric.peers.data_ptr(), self.symmetric.rank
        arguments = self.memory.arguments(config, peers, rank, self.watchdog_ns, **others)
        kernel.arguments.fill(artifact.kernel.parameters(config, arguments, encode_tensor_map))
        return kernel

    @cached_property
    def rows(self) -> torch.Tensor:
        """Linear1's result, bf16 [pool rows, 2 intermediate]; in a backward pass its gradient."""
        return self.memory.new_rows()

    def tables_for(self, dispatch: DispatchGemmConfig) -> CudaKernel:
        """The kernel that makes routing tables for a dispatch, bound once: checking a configuration takes longer than a call."""
        if dispatch not in self._tables:
            self._tables[dispatch] = self.bind(self.store.get(RoutingTablesConfig.of(dispatch)))
        return self._tables[dispatch]

    def forward(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        *,
        x_sf: torch.Tensor | None = None,
        scatter_indices: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        main_grads: MainGrads | None = None,
    ) -> torch.Tensor:
        """y, bf16 [T, hidden].

        x             bf16 [T, hidden] without x_sf; else e4m3 with x_sf, float32 [T, hidden / 128].  Of bf16xbf16 bf16 alone
        topk_idx      int64 or int32 [T, topk], distinct experts per token; an index of no expert masks the slot
        topk_weights  float32 [T, topk]
        scatter_indices  int64 or int32 [T, topk]: each pair's position among this rank's pairs of the same expert, if they are not in token
                      order (`scatter_indices`); masked slots are ignored.  Values are checked, with a synchronization, except in a capture
        out           where y goes
        main_grads    float32, shaped as fc1 and fc2 of the weights: the backward pass adds the weights' gradients here

        In BF16 a call has gradients of x, top-k weights, weights, and what the activation captures; every rank then takes part in the
        backward pass.  Raises `ProblemError` before any launch, also for a tensor that requires grad if there is no backward pass.
        """
        trains = not self.problem.formats.scaled and asks_for_gradients((x, topk_weights, *self.trained))
        check_no_gradient(("x_sf", "out"), (x_sf, out))
        if not trains:
            check_no_gradient(("x", "topk_weights"), (x, topk_weights))
        elif out is not None:
            raise ProblemError("out", tuple(out.shape), "None where gradients are asked for")
        elif self.capturing:
            raise ProblemError("capture", True, "False where gradients are asked for: the host waits for numbers of rows")
        check_device("x", x, self.acts.values.device)
        if x_sf is None:
            if x.dtype != torch.bfloat16:
                raise ProblemError("x.dtype", x.dtype, f"{torch.bfloat16} without x_sf")
            x, x_sf = quantize(x, self.problem.formats.activations, check=False)
        inputs = Inputs(x, x_sf, topk_idx, topk_weights)
        inputs.check_layout(self.problem, device=x.device)
        if x.is_cuda:
            check_current(x.device)
        if scatter_indices is not None:
            check_scatter_indices(self.problem, topk_idx, scatter_indices, values=not self.capturing)
        if main_grads is not None:
            check_main_grads(main_grads, self.memory.weights.fc1, self.memory.weights.fc2)
        if trains:
            return self.untraced_call(inputs, scatter_indices, main_grads)
        shape = (inputs.num_tokens, self.problem.hidden)
        y = torch.empty(shape, dtype=torch.bfloat16, device=x.device) if out is None else out
        check_output("out", y, shape, x.device)
        self.route(inputs, scatter_indices=scatter_indices)
        # Before the dispatch is launched, so that the host waits for the tables only.
        count = 0 if self.activates else len(self.rows) if self.capturing else self.memory.rows_in_use()
        self.launch_dispatch()
        self.activate(count)
        self.launch_combine(y)
        return y

    @property
    def trained(self) -> tuple[torch.Tensor, ...]:
        weights = self.memory.weights
        return () if self.problem.formats.scaled else (weights.fc1, weights.fc2)

    @property
    def capturing(self) -> bool:
        """Whether a graph is being captured, so that the host cannot wait."""
        return self.acts.values.is_cuda and torch.cuda.is_current_stream_capturing()

    def train_call(self, inputs: Inputs, scatter_indices: torch.Tensor | None, main_grads: MainGrads | None) -> torch.Tensor:
        """y with a backward pass (training.py), whose kernels are loaded first."""
        _ = self._training, self._backward
        with torch.no_grad():
            self.route(inputs, scatter_indices=scatter_indices)
        return train(self, inputs, self.activation, main_grads or NO_TOTALS)

    @cached_property
    def _backward(self) -> tuple[CudaKernel, CudaKernel]:
        """The launches of a backward pass, which write to the memory of the forward pass's operands."""
        return self.bind(self.store.get(self.dispatch_config.backward)), self.bind(self.store.get(self.combine_config.backward))

    @cached_property
    def _training(self) -> CudaKernel:
        """The dispatch of a forward pass that keeps rows for a backward pass."""
        return self.bind(self.store.get(self.dispatch_config.replace(trains=True)))

    def everywhere(self, name: str) -> list[torch.Tensor]:
        """A field of the symmetric buffers of all ranks."""
        return [self.memory.region.view(one, name) for one in self.symmetric.everywhere]

    def dispatch_rows(self, routed: Routed, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Dispatch and linear of `train`: rows of the pool, or gate and up if launches activate.  `weights` receive the rows' weights;
        without them the linear is the transposed one."""
        if weights is None:
            self._backward[0].launch()
            return self.acts.values
        gate_up = self.acts.values.new_empty(routed.in_use, 2 * self.problem.intermediate) if self.activates else self.rows
        self.point(self._training, row_weights=weights, **({"preactivations": gate_up} if self.activates else {}))
        self._training.launch()
        return gate_up

    def dispatch_gradients(self, gate_up: torch.Tensor, row_weights: torch.Tensor) -> Gradients:
        """Dispatch of gradients of y in `train`, if launches activate: gradients of gate and up, activated rows times their weights, and
        gradients of these weights, all by rows of the pool."""
        (kernel, _), count = self._backward, len(gate_up)
        dots = row_weights.new_empty(-(-self.problem.intermediate // DOT_COLUMNS), len(self.rows))
        self.point(kernel, gate_up=gate_up, row_weights=row_weights, dots=dots)
        kernel.launch()
        return self.rows[:count], self.acts.values[:count], dots[:, :count].sum(0)

    def combine_rows(self, routed: Routed, rows: torch.Tensor, transposed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Linear and combine of `train`, of rows that are sorted by expert unless launches activate: y, or transposed dX, and the rows in
        the pool."""
        kernel, pool = (self._backward[1], self.rows) if transposed else (self._combine, self.acts.values)
        found, y = pool[: routed.in_use], rows.new_empty(len(routed.topk_idx), self.problem.hidden)
        if not self.activates:  # a gather, because torch scatters rows one element at a time
            torch.index_select(rows, 0, routed.pool, out=found)
        self.point_at(kernel, y)
        kernel.launch()
        return y, found

    def route(self, inputs: Inputs, config: DispatchGemmConfig | None = None, *, scatter_indices: torch.Tensor | None = None) -> None:
        """Stores this rank's tokens in the symmetric buffer and makes the routing tables, for which ranks exchange counts.  `config` is the
        dispatch that reads them, by default the layer's."""
        kernel = self.tables_for(config or self.dispatch_config)
        self.memory.store(inputs)
        kernel.arguments.values.num_tokens = inputs.num_tokens
        kernel.launch()
        if scatter_indices is not None:
            self.memory.scatter(inputs.topk_idx, scatter_indices)

    def launch_dispatch(self) -> None:
        """Dispatch and Linear1, into `rows`."""
        self._dispatch.launch()

    def activate(self, count: int) -> None:
        """Applies the caller's activation, if there is one, to the first `count` of `rows`, into `acts`."""
        if self.activation is None:
            return
        found = RowActivations.of(self.activation(self.rows[:count]), self.problem.formats.activations)
        self.acts.values[:count].copy_(found.values)
        self.acts.scales[:, :count].copy_(found.scales)

    def launch_combine(self, y: torch.Tensor) -> None:
        """Linear2 of `acts` and combine, into y."""
        self.point_at(self._combine, y)
        self._combine.launch()

    def point(self, kernel: CudaKernel, **tensors: torch.Tensor) -> None:
        """Sets tensors of the following launches of a bound kernel."""
        for name, tensor in tensors.items():
            setattr(kernel.arguments.values, name, tensor.data_ptr())

    def point_at(self, combine: CudaKernel, y: torch.Tensor) -> None:
        """Sets y of the following launches of a bound combine."""
        values = combine.arguments.values
        values.y, values.num_tokens = (y if len(y) else self._nowhere).data_ptr(), len(y)

    def synchronize(self) -> None:
        """Waits for the device.  Raises `WatchdogError` when a call waited too long and trapped."""
        self.symmetric.synchronize(self.memory)
