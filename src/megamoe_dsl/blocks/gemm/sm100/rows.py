"""Row sources of SM100: which warps of a CTA pair bring rows of A, and what these and other warps need for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ....hardware.cta_pair import CLUSTER
from ....hardware.operand_tile import SF_ATOM_ROWS
from ....hardware.tensor_map import MapFields
from ....layouts.arith import align
from ....layouts.region import U16, U32, Field, MBarrier
from ....schedule.tile_sums import LANES
from ...sm100.operand_maps import byte_rows, scale_words
from ...sm100.pair_stage import PairStage
from ..gather.sm100.barriers import GATHER_WARPS, LISTS, gather_barriers


@dataclass(frozen=True)
class PairRows:
    """A warp of each CTA loads rows and their scales with TMA."""

    warps: ClassVar[int] = 0
    """Behind the loaders, that gather."""
    arrivals: ClassVar[int] = 0
    """At a stage's barrier, beside the loaders'."""
    readers: ClassVar[int] = 0
    """Warps of a pair that read work tiles, beside loaders, MMA warp and epilogue."""
    gathers: ClassVar[bool] = False
    """Whether a list says which rows are a tile's."""
    words: ClassVar[str] = "TMA"

    def barriers(self, num_stages: int) -> tuple[MBarrier, ...]:
        """Beside those of the ring."""
        return ()

    def sums(self, groups: int) -> tuple[Field, ...]:
        """What the scheduler finds a tile's group by, beside the table of groups."""
        return ()

    def listed(self, stage: PairStage) -> tuple[Field, ...]:
        """Which rows are a tile's."""
        return ()

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name; without scales their map is there, and not used."""
        problem = config.problem
        tokens = token_rows(config, args.a, args.m, config.block_m // config.cluster)
        if not problem.formats.scaled:
            return {"tokens": tokens, "sfa": tokens}
        scales = scale_words(args.a_sf, args.a_sf_ld, problem.k_words, config.stage.sfa_atoms * SF_ATOM_ROWS, config.k_block)
        return {"tokens": tokens, "sfa": scales}

    def fill_tables(self, ctx: Any) -> None:
        """What the scheduler's warp does before the roles begin."""

    def schedule(self, ctx: Any) -> None:
        """What the scheduler warp does."""
        from ..tile_scheduler import schedule_tiles

        schedule_tiles(ctx)

    def load(self, ctx: Any) -> None:
        """What the token loader's warp does."""
        from .load import load_tokens

        load_tokens(ctx)

    def first_stage(self, first: Any) -> Any:
        """The ring's first stage, as its warps know it."""
        return first

    def row_in_atom(self, row: Any) -> Any:
        """Where the scales of a tile's first row are in a stage, which has whole atoms of them."""
        return row & (SF_ATOM_ROWS - 1)


@dataclass(frozen=True)
class BroughtRows:
    """Four warps bring rows of experts, by gather4 or by one box where they are sorted, and copy their scales.

    gathers  whether a list says which rows are a tile's
    copies   whether rows have scales, which threads copy and the odd CTA announces
    pairs    CTA pairs of a cluster
    """

    gathers: bool
    copies: bool
    pairs: int

    warps: ClassVar[int] = GATHER_WARPS

    @property
    def arrivals(self) -> int:
        """The odd CTA's announcing warp, where there are scales."""
        return int(self.copies)

    @property
    def readers(self) -> int:
        """The odd CTA has an announcing warp where the even one multiplies and there are scales; a token loader reads only lists."""
        return self.copies + CLUSTER * (GATHER_WARPS - 1 + self.gathers)

    @property
    def words(self) -> str:
        rows = "gather4, four rows at a time" if self.gathers else "TMA"
        rows += f", for {self.pairs} pairs" if self.pairs > 1 else ""
        return f"{rows}; {GATHER_WARPS} warps copy their scales, a word at a time" if self.copies else rows

    def barriers(self, num_stages: int) -> tuple[MBarrier, ...]:
        """What those who gather wait for."""
        return gather_barriers(num_stages, self.gathers, self.copies)

    def sums(self, groups: int) -> tuple[Field, ...]:
        """Row blocks of the experts up to each, and up to each 32."""
        experts = align(groups - 1, LANES)
        return Field("tile_ends", (experts,), U16, 4), Field("run_ends", (experts // LANES,), U16, 4)

    def listed(self, stage: PairStage) -> tuple[Field, ...]:
        """Rows of A of the tile that is gathered, and of the next."""
        return (Field("rows", (LISTS, stage.sfa_atoms * SF_ATOM_ROWS), U32, 16),) if self.gathers else ()

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Boxes of one row where they are gathered."""
        return {"tokens": token_rows(config, args.a, args.a_rows, 1 if self.gathers else config.block_m // config.cluster)}

    def fill_tables(self, ctx: Any) -> None:
        """Fills the tables that say where rows of experts lie."""
        from ..gather.row_table import fill_tables

        fill_tables(ctx)

    def schedule(self, ctx: Any) -> None:
        """The even CTA finds a tile's expert by the sums of row blocks."""
        from ..gather.sm100.tile_search import schedule_experts

        schedule_experts(ctx)

    def load(self, ctx: Any) -> None:
        """Lists rows that are gathered, for the warps that do."""
        from ..gather.sm100.list_rows import list_rows

        list_rows(ctx)

    def multiply(self, ctx: Any) -> None:
        """Multiplies in the even CTA; in the odd one announces scales, where threads copy them."""
        from ..gather.sm100.gather import multiply_or_announce

        multiply_or_announce(ctx)

    def gather(self, ctx: Any, thread: Any) -> None:
        """What the threads of the warps that gather do."""
        from ..gather.sm100.gather import gather_tokens

        gather_tokens(ctx, thread)

    def first_stage(self, first: Any) -> Any:
        """The ring's first stage, as its warps know it."""
        from ..gather.sm100.stage import CopiedStage

        return CopiedStage(first.plan, first.cluster, first.smem, first.ring) if self.copies else first

    def row_in_atom(self, row: Any) -> Any:
        """Scales of rows are put where the tile begins."""
        return 0


def token_rows(config: Any, address: Any, count: Any, box: int) -> MapFields:
    """The tensor map of A, which has `count` rows."""
    problem = config.problem
    return byte_rows(address, problem.formats.activations.row_bytes(problem.k), count, box, config.k_block.row_bytes)
