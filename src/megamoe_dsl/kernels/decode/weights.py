"""How weights come to a CTA: what each kind needs of shared memory and of tensor maps, and which warps load rows beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...blocks.gemm.problem import INTERLEAVED
from ...blocks.gemm.tile import GROUP_ROWS, L2_PROMOTION, operand_rows
from ...blocks.gemm.weights import RUN, PackedWeights, packed_maps, runs_of_gate_and_up
from ...hardware.operand_tile import ROW_BYTES
from ...hardware.packed_tile import GROUP, PackedPart, lines_of
from ...hardware.tensor_map import MapFields
from ...layouts.region import Field
from .problem import FC1, FC2


@dataclass(frozen=True)
class PlainRows:
    """E4M3 with scales of 128 x 128, or BF16."""

    most_rows: ClassVar[int] = 0  # of an expert in a tile; 0: as many as a launch has tokens
    rows: ClassVar[int] = GROUP_ROWS  # of weights, in a tile
    part: ClassVar[PackedPart | None] = None  # of a packed tile in a stage: then tiles are whole, and K blocks requested one at a time
    map_names: ClassVar[tuple[str, ...]] = ("fc1_weights", "fc2_weights")
    num_bytes: ClassVar[int] = GROUP_ROWS * ROW_BYTES  # in a stage
    tables: ClassVar[tuple[Field, ...]] = ()
    row_warps: ClassVar[int] = 6  # that load rows for one warpgroup
    most_stages: ClassVar[int] = 8
    """Stages of a ring. With more, requests of weights would delay what CTAs wait for from one another."""

    def maps(self, config: Any, args: Any) -> list[MapFields]:
        problem, experts = config.problem, config.problem.num_experts
        l2 = 128 if config.burst > 1 else L2_PROMOTION
        rows = [
            operand_rows(address, problem.formats.weights.row_bytes(problem.k(phase)), experts * problem.n(phase), GROUP_ROWS, l2=l2)
            for phase, address in ((FC1, args.w1), (FC2, args.w2))
        ]
        return [runs_of_gate_and_up(rows[FC1], problem.n(FC1), experts, problem.gate_up == INTERLEAVED, GROUP_ROWS // (4 * RUN)), rows[FC2]]

    def channel(self, tile: Any, warp: Any, row: Any, block: int) -> Any:
        """That a thread has gate and up of in Linear1, in a block of 64 rows."""
        return tile.n_block * (GROUP_ROWS // 2) + warp * RUN + row


@dataclass(frozen=True)
class PackedRows(PlainRows):
    """E2M1 in packed tiles (hardware/packed_tile.py), those of Linear1 in `order_rows_sm90`, which math warps decode in registers."""

    part = GROUP
    rows: ClassVar[int] = part.rows
    map_names: ClassVar[tuple[str, ...]] = ("fc1_codes", "fc1_records", "fc2_codes", "fc2_records")
    num_bytes: ClassVar[int] = part.num_bytes
    tables: ClassVar[tuple[Field, ...]] = PackedWeights().tables
    row_warps: ClassVar[int] = 5
    most_rows: ClassVar[int] = 8  # with twice as many a tile takes longer, and hardly any expert has more

    def lines(self, config: Any, phase: int) -> int:
        return lines_of(config.problem.n(phase), config.k_blocks(phase))

    def maps(self, config: Any, args: Any) -> list[MapFields]:
        lines = [config.problem.num_experts * self.lines(config, phase) for phase in (FC1, FC2)]
        return [*packed_maps(args.w1, self.part, lines[FC1]), *packed_maps(args.w2, self.part, lines[FC2])]

    def channel(self, tile: Any, warp: Any, row: Any, block: int) -> Any:
        return tile.n_block * (self.rows // 2) + warp * 16 + row * 2 + block
