"""Memory of one rank of an expert-parallel layer: symmetric buffer, weights, and the record of a wait that exceeded its limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

from ...hardware.operand_tile import CHANNELS_PER_WORD
from ...kernels.moe.halves.config import EpConfig, RoutingTablesConfig
from ...kernels.moe.halves.layouts.symmetric import WAITS, Kept, first_rows, pool_rows, symmetric_buffer
from ...layouts.records import trace_buffer
from ...problem import Problem
from ...quant import ExpertWeights, inverse_utccp_scale_order, quantize
from ...quant.weights import TORCH_DTYPES, stored_row
from ...recipe import RECIPES, UE8M0, Format
from ..buffers import Inputs
from ..gemm_scales import kernel_scales, scale_words
from ..watchdog import new_record
from .routing import RoutingTables, scattered_rows

Activation = Callable[[torch.Tensor], torch.Tensor]
"""A caller's function of bf16 [rows, 2 intermediate], to bf16 [rows, intermediate], row by row; padding rows are undefined."""


@dataclass(frozen=True)
class RowActivations:
    """Activated rows, quantized, as Linear2 reads them.

    values  e4m3 [pool rows, intermediate]; of E2M1 uint8 [pool rows, intermediate / 2], two in a byte; of bf16xbf16 the rows in BF16
    scales  float32 [intermediate / 128, pool rows]; UE8M0 as int32 words of a row's four scales per 128 channels, in UTCCP order; of BF16
            uint8 [0, pool rows]
    """

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor, form: Format = RECIPES["fp8xfp8"].activations) -> RowActivations:
        """From bf16 [pool rows, intermediate], in the format of a recipe's activations: a scale of amax / 448 for each row and 128
        channels, or a power of two for 32; BF16 unchanged.  Does not synchronize."""
        return cls.ordered(*quantize(rows, form, check=False))

    @classmethod
    def ordered(cls, values: torch.Tensor, scales: torch.Tensor) -> RowActivations:
        """From row-major scales: float32 [pool rows, intermediate / 128], uint8 [pool rows, intermediate / 32], or `no_scales`."""
        if scales.dtype != torch.uint8 or not scales.shape[-1]:
            return cls(values, scales.T.contiguous())
        return cls(values, scale_words(scales)[:, : len(values)])  # without rows there are no words; with rows, whole atoms

    @property
    def row_scales(self) -> torch.Tensor:
        return inverse_utccp_scale_order(self.scales) if self.scales.dtype == torch.int32 else self.scales.T.contiguous()

    @classmethod
    def empty(cls, problem: Problem, device: torch.device | str) -> RowActivations:
        layout = cls.layout(problem)
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for dtype, shape in layout.values()))

    @staticmethod
    def layout(problem: Problem) -> dict[str, tuple[torch.dtype, tuple[int, int]]]:
        """dtype and shape of every field."""
        rows, form = pool_rows(problem), problem.formats.activations
        dtype, width = stored_row(form, problem.intermediate)
        scale = torch.int32 if form.scale == UE8M0 else TORCH_DTYPES[form.scale]
        words = problem.intermediate // CHANNELS_PER_WORD if form.scale else 0
        return {"values": (dtype, (rows, width)), "scales": (scale, (words, rows))}

    @property
    def places(self) -> dict[str, int]:
        """Addresses, by arguments of a launch."""
        return {"acts": self.values.data_ptr(), "acts_sf": self.scales.data_ptr()}


class EpBuffers:
    """Memory of one rank, on the device of its weights.

    weights   of the local experts, in checkpoint order; the kernels read these tensors, and UE8M0 scales as words
    sym       the symmetric buffer, uint8; None allocates one
    watchdog  the record of a wait; None makes one
    keeps     optional fields of the buffer, for configurations that need them
    """

    def __init__(
        self,
        problem: Problem,
        weights: ExpertWeights,
        sym: torch.Tensor | None = None,
        watchdog: torch.Tensor | None = None,
        *,
        keeps: Kept = Kept.NOTHING,
    ) -> None:
        self.problem, self.region = problem, symmetric_buffer(problem, keeps)
        self.sym = torch.zeros(self.region.size, dtype=torch.uint8, device=weights.fc1.device) if sym is None else sym
        self.watchdog = new_record(self.sym.device) if watchdog is None else watchdog
        self.view = cache(partial(self.region.view, self.sym))
        """A field of the symmetric buffer."""
        self.weights = weights
        self.traces: dict[EpConfig, torch.Tensor] = {}

    def store(self, inputs: Inputs, tables: RoutingTables | None = None) -> None:
        """Stores this rank's inputs, and its routing tables unless a launch makes them, for the next launch."""
        given = {**vars(inputs), **({} if tables is None else vars(tables))}
        kept = {name: one for name, one in given.items() if name in self.region}
        torch._foreach_copy_([self.view(name)[: len(one)] for name, one in kept.items()], list(kept.values()))

    def scatter(self, topk_idx: torch.Tensor, scatter_indices: torch.Tensor) -> None:
        """Changes the rows of this rank's pairs in the current tables from token order to that of checked indices."""
        rows = self.view("pair_rows")[: len(topk_idx)]
        rows.copy_(scattered_rows(self.problem, topk_idx, rows, scatter_indices))

    def tables(self, num_tokens: int) -> RoutingTables:
        """Views of the current tables, of `num_tokens` tokens."""
        views = (self.view(name) for name in ("send_pairs", "recv_pairs", "expert_rows"))
        return RoutingTables(self.view("pair_rows")[:num_tokens], *views)

    def row_counts(self) -> list[int]:
        """Rows of each local expert, from the current tables; waits for the device."""
        return self.view("expert_rows").tolist()  # type: ignore[no-any-return]

    def rows_in_use(self) -> int:
        """Pool rows up to the last expert's last block, from the current tables; waits for the device."""
        return first_rows(self.row_counts())[-1]

    def expert_slices(self) -> list[slice]:
        """Pool rows of each local expert, from the current tables; waits for the device."""
        rows = self.row_counts()
        return [slice(first, first + count) for first, count in zip(first_rows(rows), rows, strict=False)]

    def arguments(self, config: EpConfig | RoutingTablesConfig, peers: int, rank: int, watchdog_ns: int, **others: int) -> dict[str, int]:
        """Arguments of a launch (kernels/moe/arguments.py): addresses of this memory, rank, the limit of waits, and `others`."""
        watched = {"watchdog": self.watchdog.data_ptr(), "watchdog_ns": watchdog_ns}
        found = {"sym": self.sym.data_ptr(), "peers": peers, "rank": rank, **watched, **others}
        if isinstance(config, RoutingTablesConfig):
            return found
        name = config.reads
        found |= {"weights": getattr(self.weights, name).data_ptr(), "weights_sf": self.weight_scales[f"{name}_sf"].data_ptr()}
        return {**found, "trace": self.trace_of(config).data_ptr()} if config.trace else found

    def watchdog_message(self) -> str | None:
        return WAITS.describe(self.watchdog.tolist())

    def trace_of(self, config: EpConfig) -> torch.Tensor:
        """Stamps of the last launch of a traced kernel, int64 [num_sms, warps, stamps, 2] (layouts/records.py)."""
        if config not in self.traces:
            shape = trace_buffer(config.num_sms, config.num_threads // 32)["stamps"].field.shape
            self.traces[config] = torch.zeros(shape, dtype=torch.int64, device=self.sym.device)
        return self.traces[config]

    @property
    def weights(self) -> ExpertWeights:
        return self._weights

    @weights.setter
    def weights(self, weights: ExpertWeights) -> None:
        self._weights = weights
        self.weight_scales = {name: kernel_scales(getattr(weights, name)) for name in ("fc1_sf", "fc2_sf")}

    def new_rows(self, width: int | None = None) -> torch.Tensor:
        """Memory for all rows: bf16 [pool rows, width], by default Linear1's 2 intermediate."""
        columns = 2 * self.problem.intermediate if width is None else width
        return torch.empty(pool_rows(self.problem), columns, dtype=torch.bfloat16, device=self.sym.device)
