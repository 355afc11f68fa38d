"""Row sources: which warps load rows of A, and the shared memory and tensor maps that they need, on SM90 and for CTA pairs on SM100.

If threads copy scales on SM100, the barrier *copied* of a stage counts each thread's copies in its own CTA; the odd CTA then announces its
scales on *full* of the even CTA, whose MMA warp waits for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...hardware.cta_pair import CLUSTER
from ...hardware.operand_tile import SF_ATOM_ROWS
from ...hardware.tensor_map import MapFields, TensorMapDtype
from ...layouts.arith import align
from ...layouts.region import F32, U16, U32, Field, MBarrier
from ...lazy import find, late
from ..sm100.pair_stage import PairStage, byte_rows, scale_words
from .tile import GATHER_WARPS, L2_PROMOTION, LANES, LISTS, SCALE_STEP, TileShape, operand_rows, part, promotion, transposed_side
from .weights import side_maps, transposed_pair_side


class RowSource:
    """Loads rows of A into a stage; by default without barriers, lists or tensor maps of its own."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return {}

    def barriers(self, num_stages: int) -> tuple[MBarrier, ...]:
        return ()

    def first_stage(self, first: Any) -> Any:
        return first

    def read_stage(self, first: Any) -> Any:
        """The first stage as the math warps read it."""
        return first


@dataclass(frozen=True)
class LoadedRows(RowSource):
    """One warp loads rows with TMA.  any_row: a tile may begin at any row of A, not only at a multiple of four."""

    any_row: bool

    warps: ClassVar[int] = 1
    own_warps: ClassVar[int] = 0
    arrivals: ClassVar[int] = 1  # of the loaders at a stage's barrier
    map_names: ClassVar[tuple[str, ...]] = ("tokens", "tokens_part", "sfa")
    words: ClassVar[str] = "TMA"

    def scale_rows(self, tile: TileShape) -> int:
        """Scales that a stage holds: those of the tile's rows and of up to three neighboring rows; 0 without scales."""
        return tile.m + (SCALE_STEP if self.any_row else 0) if tile.scaled else 0

    def scales(self, tile: TileShape, num_stages: int) -> Field:
        return Field("sfa", (num_stages, align(4 * self.scale_rows(tile), 128) // 4), F32, 128)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem, tile, count = config.problem, config.tile, args.a_rows if config.problem.of_experts else args.m
        width = problem.formats.activations.row_bytes(problem.k)
        tokens, tokens_part = (operand_rows(args.a, width, count, box, l2=promotion(problem, width)) for box in (tile.m, part(tile.m)))
        dims, box, pitch = (count, problem.k_blocks), (self.scale_rows(tile), 1), (4 * args.a_sf_ld,)
        scales = MapFields(args.a_sf, TensorMapDtype.F32, dims, pitch, box, 0, L2_PROMOTION)
        # Without scales their map is there, too, and not used.
        unused = operand_rows(args.a, width, count, tile.m)
        return {"tokens": tokens, "tokens_part": tokens_part, "sfa": scales if tile.scaled else unused}

    def load(self, ctx: Any, number: Any) -> None:
        find("blocks.gemm.load.load_tokens")(ctx)


@dataclass(frozen=True)
class SummedRows(LoadedRows):
    """The transposed left operand of a varlen-K GEMM: K blocks begin at a group's first row."""

    any_row: bool = False

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return transposed_side(self.map_names, args.a, args.a_sf, config.problem.tile_rows, args.m, config.tile.m)


@dataclass(frozen=True)
class ListedRows(RowSource):
    """A warpgroup gathers rows with `cp.async`, 16 bytes a lane.  at_once: K blocks whose scales of a row come with one copy."""

    at_once: int

    warps: ClassVar[int] = GATHER_WARPS
    own_warps: ClassVar[int] = warps  # beside the loaders' warpgroup
    arrivals: ClassVar[int] = 32 * warps  # every thread arrives on its own
    any_row: ClassVar[bool] = False
    map_names: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[str] = "threads gather them, 16 bytes at a time"

    def scale_rows(self, tile: TileShape) -> int:
        return tile.m if tile.scaled else 0

    def scale_places(self, num_stages: int) -> int:
        """Places of the ring of scales, a power of two; a place is written again once its K blocks have been read."""
        needed = -(-(num_stages + self.at_once - 1) // self.at_once)
        return 1 << (needed - 1).bit_length()

    def scales(self, tile: TileShape, num_stages: int) -> Field:
        """Scales of a single K block lie in its stage.  Scales of several outlive the first of their stages, so they have a ring."""
        rows = self.scale_rows(tile)
        if self.at_once == 1:
            return Field("sfa", (num_stages, align(4 * rows, 128) // 4), F32, 128)
        return Field("sfa", (self.scale_places(num_stages), rows * self.at_once), F32, 128)

    load = late("blocks.gemm.gather.gather_tokens")

    def read_stage(self, first: Any) -> Any:
        from cutlass import Int32

        from .gather import GatheredStage

        return GatheredStage(**vars(first), at_once=self.at_once, places=self.scale_places(first.ring.depth), word=Int32(0))


@dataclass(frozen=True)
class GatheredColumns(ListedRows):
    """Two loader warps gather rows of K; each half warp copies 256 bytes of a row."""

    warps: ClassVar[int] = 2
    own_warps: ClassVar[int] = 0
    arrivals: ClassVar[int] = 32 * warps

    load = late("blocks.gemm.varlen_k.gather_columns")


@dataclass(frozen=True)
class PairRows(RowSource):
    """A warp of each CTA loads rows and their scales with TMA."""

    warps: ClassVar[int] = 0  # behind the loaders, that gather
    arrivals: ClassVar[int] = 0  # at a stage's barrier, beside the loaders'
    readers: ClassVar[int] = 0  # warps of a pair that read work tiles, beside loaders, MMA warp and epilogue
    gathers: ClassVar[bool] = False  # whether a list says which rows are a tile's
    mn_major: ClassVar[bool] = False  # whether rows of shared memory are K
    words: ClassVar[str] = "TMA"

    def sums(self, groups: int) -> tuple[Field, ...]:
        """Tables by which the scheduler finds a tile's group, besides the table of groups."""
        return ()

    def listed(self, stage: PairStage) -> tuple[Field, ...]:
        return ()

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        problem = config.problem
        tokens = token_rows(config, args.a, args.m, config.block_m // config.cluster)
        if not problem.formats.scaled:
            return {"tokens": tokens, "sfa": tokens}
        scales = scale_words(args.a_sf, args.a_sf_ld, problem.k_words, config.stage.sfa_atoms * SF_ATOM_ROWS, config.k_block)
        return {"tokens": tokens, "sfa": scales}

    load = late("blocks.gemm.sm100.load.load_tokens")

    def row_in_atom(self, ctx: Any, tile: Any) -> Any:
        """Place of the first row's scales in a stage, which holds whole atoms of 128 scales."""
        return ctx.source_row(tile) & (SF_ATOM_ROWS - 1)


@dataclass(frozen=True)
class PairSummedRows(PairRows):
    """The transposed left operand of a varlen-K GEMM: K blocks begin at a group's first row."""

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        boxes = config.block_m // CLUSTER, config.block_m
        return transposed_pair_side(("tokens", "sfa"), args.a, args.a_sf, (config.problem.n, args.m), boxes, config.k_block)


@dataclass(frozen=True)
class PairColumns(PairSummedRows):
    """The MN-major left operand of a varlen-K GEMM in BF16.  listed_side: whether its rows are gathered by a list."""

    listed_side: bool

    mn_major: ClassVar[bool] = True
    words: ClassVar[str] = "gather4, four rows at a time, or TMA where they are sorted"

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return side_maps("tokens", self.listed_side, config.problem.n, args)

    load = late("blocks.gemm.sm100.varlen_k.load_left")


@dataclass(frozen=True)
class BroughtRows(RowSource):
    """Four warps load rows of experts, by gather4 or, if the rows are sorted, by one box, and copy their scales."""

    gathers: bool  # whether a list says which rows are a tile's
    copies: bool  # whether rows have scales, which threads copy and the odd CTA announces
    pairs: int  # CTA pairs of a cluster

    warps: ClassVar[int] = GATHER_WARPS
    mn_major: ClassVar[bool] = False

    @property
    def arrivals(self) -> int:
        return int(self.copies)

    @property
    def readers(self) -> int:
        """With scales a warp of the odd CTA announces them, in place of the even CTA's MMA warp; the index warp exists only for lists."""
        return self.copies + CLUSTER * (GATHER_WARPS - 1 + self.gathers)

    @property
    def words(self) -> str:
        rows = "gather4, four rows at a time" if self.gathers else "TMA"
        rows += f", for {self.pairs} pairs" if self.pairs > 1 else ""
        return f"{rows}; {GATHER_WARPS} warps copy their scales, a word at a time" if self.copies else rows

    def barriers(self, num_stages: int) -> tuple[MBarrier, ...]:
        """Barriers of lists only if rows are gathered, of copied scales only if threads copy them."""
        threads, copying = 32 * GATHER_WARPS, "every thread that gathers, once it has copied"
        copied = MBarrier("copied", num_stages, threads, copying, "", "MMA warp, announcing warp")
        lists = (
            MBarrier("list_full", LISTS, 32, "every lane of the index warp, once it has copied", "", "warps that gather"),
            MBarrier("list_empty", LISTS, threads, "every thread that gathers", "", "index warp"),
        )
        return (*((copied,) if self.copies else ()), *(lists if self.gathers else ()))

    def sums(self, groups: int) -> tuple[Field, ...]:
        """Running sums of the experts' row blocks: after each expert, and after each 32 experts."""
        experts = align(groups - 1, LANES)
        return Field("tile_ends", (experts,), U16, 4), Field("run_ends", (experts // LANES,), U16, 4)

    def listed(self, stage: PairStage) -> tuple[Field, ...]:
        return (Field("rows", (LISTS, stage.sfa_atoms * SF_ATOM_ROWS), U32, 16),) if self.gathers else ()

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        return {"tokens": token_rows(config, args.a, args.a_rows, 1 if self.gathers else config.block_m // config.cluster)}

    load = late("blocks.gemm.sm100.gather.list_rows")
    multiply = late("blocks.gemm.sm100.gather.multiply_or_announce")
    gather = late("blocks.gemm.sm100.gather.gather_tokens")

    def first_stage(self, first: Any) -> Any:
        return find("blocks.gemm.sm100.gather.CopiedStage")(**vars(first)) if self.copies else first

    def row_in_atom(self, ctx: Any, tile: Any) -> Any:
        return 0


def token_rows(config: Any, address: Any, count: Any, box: int) -> MapFields:
    """The tensor map of A with `count` rows."""
    problem = config.problem
    return byte_rows(address, problem.formats.activations.row_bytes(problem.k), count, box, config.k_block.row_bytes)
