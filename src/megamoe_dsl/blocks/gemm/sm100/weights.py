"""Weight sources of SM100: which rows of B a CTA of a pair has of a tile, and their tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....hardware.operand_tile import SF_ATOM_ROWS
from ....hardware.tensor_map import MapFields
from ....layouts.arith import align
from ...sm100.operand_maps import scale_words, weight_rows
from ..gather.problem import INTERLEAVED

RUN = 8  # rows of gate, then of up


@dataclass(frozen=True)
class PairWeights:
    """Rows that follow one another in B."""

    def rows(self, config: Any, address: Any) -> MapFields:
        """The tensor map of B."""
        problem = config.problem
        return weight_rows(address, problem.k, problem.num_groups * problem.n, config.k_block, config.stage.weight_rows)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name; without scales their map is there, and not used."""
        problem, weights = config.problem, self.rows(config, args.b)
        if not problem.formats.scaled:
            return {"weights": weights, "sfb": weights}
        width, height = align(problem.n, SF_ATOM_ROWS), problem.num_groups * problem.k_words
        return {"weights": weights, "sfb": scale_words(args.b_sf, width, height, config.stage.weight_rows, config.k_block)}

    def operand(self, ctx: Any, tile: Any) -> Any:
        """A CTA's part of a tile's rows, as the loader fetches them."""
        from .load import weight_operand

        return weight_operand(ctx, tile)


@dataclass(frozen=True)
class PairGateUpWeights(PairWeights):
    """8 rows of gate, the 8 of up that belong to them, and so on, wherever they lie in B.  order: how B has gate and up.

    Gate and up of a channel then lie in one thread of the epilogue.  One box of five dimensions brings a CTA's channels, 64 for each
    consumer: K, eight rows, gate or up, eights of channels, experts; that gate and up lie apart, or alternate, is a matter of strides.
    """

    order: str

    def runs(self, config: Any) -> int:
        """A CTA's part of a tile has so many runs of `RUN` rows of gate, and as many of up."""
        count: int = config.stage.weight_rows // (2 * RUN)
        return count

    def rows(self, config: Any, address: Any) -> MapFields:
        problem = config.problem
        flat = weight_rows(address, problem.k, problem.n, config.k_block)
        (row,) = flat.strides
        dims = (flat.dims[0], RUN, 2, problem.n // (2 * RUN), problem.num_groups)
        if self.order == INTERLEAVED:
            strides = (2 * row, row, 2 * RUN * row, problem.n * row)
        else:
            strides = (row, problem.n // 2 * row, RUN * row, problem.n * row)
        return flat._replace(dims=dims, strides=strides, box=(flat.box[0], RUN, 2, self.runs(config), 1))

    def operand(self, ctx: Any, tile: Any) -> Any:
        from ..gather.sm100.gate_up import gate_up_operand

        return gate_up_operand(ctx, tile)
