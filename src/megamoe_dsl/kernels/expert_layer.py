"""A MoE layer on one GPU as four launches: tokens routed, and quantized unless they stay BF16, two GEMMs over the rows of experts, and
the sum of each token's; for a few tokens on SM90 as one launch.  A router gives experts unequal numbers of rows (docs/lab/one_gpu.md).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..activation import SILU
from ..blocks.gemm.base_config import BaseGemmConfig
from ..blocks.gemm.choose import burst_of, unscaled
from ..blocks.gemm.config import MOST_SWAPPED_ROWS, GemmConfig
from ..blocks.gemm.problem import (
    ALIGNED,
    BF16,
    F32,
    GATE_FIRST,
    GATE_UP,
    GEMM_RECIPES,
    I64,
    LEFT,
    PACKED,
    RIGHT,
    SCALE_BLOCK,
    SORTED_PACKED,
    GatherGemmProblem,
    GemmProblem,
    VarlenKProblem,
)
from ..blocks.gemm.sm100.config import tile_rows
from ..blocks.gemm.tile import SCALE_STEP, room
from ..config_error import ConfigError, as_integer
from ..layouts import region
from ..layouts.arith import align
from ..layouts.region import Field, Region
from ..problem import CHANNEL_STEP, ProblemError
from ..recipe import Recipe
from ..target import Target
from .decode.config import MOST_TOKENS, DecodeConfig
from .decode.family import DecodeKernel
from .decode.problem import DecodeProblem
from .expert_routing.config import MOST_SORTERS, TokensConfig
from .expert_routing.problem import RoutingProblem, SumProblem
from .gemm.family import GatherGemmKernel, GemmKernel
from .moe.layouts.symmetric import CODES, SCALES
from .registry import choose

ROWS_BYTES = 512 << 20  # of results of all experts before they are summed, at most where columns can be divided
SUMMED_COLUMNS = 256  # a tile of Linear2


def uneven_config(problem: GemmProblem, target: Target, rows: int) -> BaseGemmConfig:
    """The configuration for so many rows of all experts together.  Raises `ProblemError` and `ConfigError`."""
    if target.arch.has_tensor_memory:
        most = room(rows / problem.num_groups)
        tile = next(({"block_m": block_m} for block_m in tile_rows(problem) if block_m >= most), {})
        return GemmKernel().choose(problem, target, rows, dynamic_schedule=True, **tile)
    # Linear1 is a launch of blocks/gemm, and where rows lie is said by the one before it.
    own: dict[str, Any] = {"num_sms": target.num_sms, "dynamic_schedule": True, "prefetch_weights": True}
    return GemmConfig(problem, **own, **uneven_tile(problem, target, problem.check_rows(rows)))


def uneven_tile(problem: GemmProblem, target: Target, rows: int) -> dict[str, Any]:
    """Fields of the tile, and how it is multiplied."""
    block_m = max(align(int(room(rows / problem.num_groups)), 8), 16)
    if block_m <= MOST_SWAPPED_ROWS:
        few = {"block_m": block_m, "block_n": 128, "swap_ab": True, "k_in_flight": 2, "burst": burst_of(problem)}
        return few if problem.formats.scaled else unscaled(few)
    return {"block_m": 128, "block_n": 256, "half_tiles": True, "epilogue_buffers": 1, "cluster": target.pair}


class LayerConfigs(NamedTuple):
    """Configurations of the four launches, in order."""

    route: TokensConfig
    fc1: BaseGemmConfig
    fc2: BaseGemmConfig
    total: TokensConfig


class BackwardProblems(NamedTuple):
    """GEMMs of the backward pass: gate and up where not kept, dY W2 and with it dH, dH W1, and the gradients of W1 and W2."""

    gate_up: GatherGemmProblem
    rows: GatherGemmProblem
    tokens: GemmProblem
    w1: VarlenKProblem
    w2: VarlenKProblem


@dataclass(frozen=True)
class ExpertLayer:
    """y[t] = sum over a token's experts e of weight * W2[e] (activation(W1[e] x[t])).  Raises `ProblemError`."""

    hidden: int  # channels of a token: a multiple of 128, in bf16xbf16 on SM90 of 32
    intermediate: int  # channels between the linears, likewise
    num_experts: int  # at most 1024, all on this GPU
    topk: int  # experts of a token
    gate_up: str = GATE_FIRST  # how rows of W1 are gate and up: gate_first, up_first, interleaved
    activation: str = SILU  # of gate and up (activation.py)
    recipe: str = GEMM_RECIPES[0]  # fp8xfp8 on SM90; fp8xfp4, mxf4xmxf4, nvfp4xnvfp4 on SM100; bf16xbf16 on both (recipe.py)
    preactivations: bool = False  # whether gate and up of every row are stored, too
    activation_clamp: float | None = None  # as of a `Problem`; None is the activation's own
    biases: str = ""  # f32 or bf16: of each row of W1 and W2, which are added to sums in FP32, on SM90; empty: none
    indices: str = I64  # what tokens' experts are: i64 or i32
    weights: str = F32  # what their weights are: f32 or bf16

    def __post_init__(self) -> None:
        if self.gate_up not in GATE_UP[1:]:
            raise ProblemError("gate_up", self.gate_up, "one of " + ", ".join(GATE_UP[1:]))
        step, channels = CHANNEL_STEP if not self.formats.scaled else SCALE_BLOCK, as_integer(self.intermediate)
        if channels is None or channels % step:
            raise ProblemError("intermediate", self.intermediate, f"a multiple of {step} in {self.recipe}")
        _ = self.routing, self.fc1, self.fc2  # each checks what it is of

    @property
    def routing(self) -> RoutingProblem:
        return RoutingProblem(self.hidden, self.num_experts, self.topk, self.recipe)

    @property
    def fc1(self) -> GatherGemmProblem:
        n, experts = 2 * self.intermediate, self.num_experts
        activates: dict[str, Any] = {
            name: getattr(self, name) for name in ("gate_up", "activation", "activation_clamp", "preactivations", "biases")
        }
        activates["output"] = self.formats.hidden.element
        return GatherGemmProblem(n, self.hidden, num_groups=experts, recipe=self.recipe, **activates)

    def columns(self, tokens: int) -> int:
        """Columns of Linear2 that are made and summed at a time, so that rows of so many tokens stay within `ROWS_BYTES`; all where the
        tensor core applies scales."""
        step = SUMMED_COLUMNS if self.hidden % SUMMED_COLUMNS == 0 and not self.formats.scales_in_mma else self.hidden
        parts = range(step, self.hidden + 1, step)
        allowed = [one for one in parts if self.hidden % one == 0 and 2 * tokens * self.topk * one <= ROWS_BYTES]
        return max(allowed, default=step)

    @property
    def fc2(self) -> GemmProblem:
        """Rows as Linear1 leaves them.  Where the tensor core applies scales, a packed GEMM is one of the family that gathers."""
        groups: dict[str, Any] = {"num_groups": self.num_experts, "recipe": self.recipe, "biases": self.biases}
        if not self.formats.scales_in_mma:
            return GemmProblem(self.hidden, self.intermediate, PACKED, **groups)
        return GatherGemmProblem(self.hidden, self.intermediate, source=SORTED_PACKED, **groups)

    def backward(self, output: str = BF16, kind: str = PACKED) -> BackwardProblems:
        """Its GEMMs; weight gradients are in `output`, and those in float32 add to what is there; in BF16 their rows may be aligned.  The
        tensor core takes E4M3 of which K lies in rows alone: weights are then transposed before, and rows padded to blocks of 128."""
        experts: Any = {"num_groups": self.num_experts, "recipe": self.recipe}
        n, scaled = 2 * self.intermediate, self.formats.scaled
        hidden, own = self.hidden, self.intermediate
        adds: Any = {**experts, "output": output, "accumulate": output == F32, "kind": kind}
        transposed: Any = {**experts, "transposed_b": not scaled}
        rows: Any = {**transposed, "gradient": self.gate_up, "activation": self.activation}
        return BackwardProblems(
            GatherGemmProblem(n, hidden, **experts),
            GatherGemmProblem(own, hidden, **rows),
            GemmProblem(hidden, n, ALIGNED if scaled else PACKED, **transposed),
            VarlenKProblem(n, hidden, gathered="" if scaled else RIGHT, **adds),
            VarlenKProblem(hidden, own, gathered="" if scaled else LEFT, **adds),
        )

    @property
    def decode(self) -> DecodeProblem:
        fields = "hidden", "intermediate", "num_experts", "topk", "gate_up", "activation", "activation_clamp", "recipe"
        return DecodeProblem(**{name: getattr(self, name) for name in fields})

    @property
    def formats(self) -> Recipe:
        return self.routing.formats

    def kernels(self, target: Target, tokens: int) -> LayerConfigs | tuple[DecodeConfig]:
        """What so many tokens are computed with: one launch for a few, where there is such a kernel, else four."""
        if target.arch.name in DecodeKernel.configs and 0 < tokens <= MOST_TOKENS and not (self.biases or self.preactivations):
            with suppress(ConfigError):
                return (DecodeKernel().choose(self.decode, target, tokens, indices=self.indices, weights=self.weights),)
        return self.configs(target, tokens)

    def configs(self, target: Target, tokens: int, **fc1: Any) -> LayerConfigs:
        """The four launches for so many tokens; `fc1` are fields of Linear1's.  Raises `ProblemError` and `ConfigError`."""
        rows, columns = self.routing.check_num_tokens(tokens) * self.topk, self.columns(tokens)
        fc2, total = self.fc2, SumProblem(columns, self.topk, self.weights)
        if columns < self.hidden:
            fc2, total = replace(fc2, n=columns, b_rows=self.hidden), replace(total, width=self.hidden)
        return LayerConfigs(
            choose(self.routing, target, tokens, indices=self.indices),
            GatherGemmKernel().choose(self.fc1, target, rows, **fc1),
            choose(fc2, target, rows) if self.formats.scales_in_mma else uneven_config(fc2, target, rows),
            choose(total, target, tokens),
        )


ALIGNMENT = 128  # bytes, of each field: TMA and 16-byte loads take any of them, and no two share a line of L2


def chosen_experts(tokens: int, topk: int) -> Region:
    """Each token's experts, and their weights, where a call chooses them itself."""
    slots = (tokens, topk)
    return Region.stack(
        "chosen_experts", Field("topk_idx", slots, region.I64, ALIGNMENT), Field("topk_weights", slots, region.F32, ALIGNMENT)
    )


def workspace(layer: ExpertLayer, tokens: int) -> Region:
    """What launches of a call of so many tokens leave for one another.  Scales of activated rows have a line for each 128 channels where
    they are FP32, and one for each row where they are bytes; tokens that stay as they are have no place."""
    rows = tokens * layer.topk
    x, h = layer.formats.activations, layer.formats.hidden
    sf, channels, quantized = SCALES[x.scale], h.scales_of(layer.intermediate), tokens if x.scale else 0
    # Lines of scales by channels where partial sums are promoted, by rows where the tensor core applies them.
    h_sf = (channels, align(rows, SCALE_STEP)) if layer.formats.promoted else (rows, channels)
    return Region.stack(
        "workspace",
        Field("x_q", (quantized, x.row_bytes(layer.hidden)), CODES[x.element], ALIGNMENT),
        Field("x_sf", (quantized, x.scales_of(layer.hidden)), sf, ALIGNMENT),
        Field("ends", (layer.num_experts,), region.I32, ALIGNMENT),  # of each expert's rows
        Field("sources", (rows,), region.I32, ALIGNMENT),  # the token of each row
        Field("positions", (tokens, layer.topk), region.I32, ALIGNMENT),  # the row of each slot
        Field("table", (MOST_SORTERS, layer.num_experts), region.I32, ALIGNMENT),  # counts of the CTAs that sort
        Field("h", (rows, h.row_bytes(layer.intermediate) // CODES[h.element].itemsize), CODES[h.element], ALIGNMENT),
        Field("h_sf", h_sf, sf, ALIGNMENT),
        Field("rows", (rows, layer.columns(tokens)), region.BF16, ALIGNMENT),  # results of all experts, columns that are summed together
    )
