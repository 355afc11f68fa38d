"""Row sources of SM90: which warps bring rows of A, and what these need of shared memory and of tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...hardware.tensor_map import MapFields, TensorMapDtype
from ...layouts.arith import align
from ...layouts.region import F32, Field
from .maps import L2_PROMOTION, byte_rows, part, promotion, rows_of_a
from .tile import SCALE_STEP, TileShape


@dataclass(frozen=True)
class LoadedRows:
    """One warp loads rows with TMA.  any_row: a tile may begin at any row of A, not only at a multiple of four."""

    any_row: bool

    warps: ClassVar[int] = 1
    arrivals: ClassVar[int] = 1
    """Of the loaders at a stage's barrier."""
    map_names: ClassVar[tuple[str, ...]] = ("tokens", "tokens_part", "sfa")
    words: ClassVar[str] = "TMA"

    def scale_rows(self, tile: TileShape) -> int:
        """Scales that a stage holds: those of the tile's rows, and of up to three before them or behind; 0 without scales."""
        return tile.m + (SCALE_STEP if self.any_row else 0) if tile.scaled else 0

    def scales(self, tile: TileShape, num_stages: int) -> Field:
        """Where scales lie: with their stage."""
        return Field("sfa", (num_stages, align(4 * self.scale_rows(tile), 128) // 4), F32, 128)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """Fields of the tensor maps, by name."""
        problem, tile, count = config.problem, config.tile, rows_of_a(config.problem, args)
        width = problem.formats.activations.row_bytes(problem.k)
        tokens, tokens_part = (byte_rows(args.a, width, count, box, l2=promotion(problem, width)) for box in (tile.m, part(tile.m)))
        dims, box, pitch = (count, problem.k_blocks), (self.scale_rows(tile), 1), (4 * args.a_sf_ld,)
        scales = MapFields(args.a_sf, TensorMapDtype.F32, dims, pitch, box, 0, L2_PROMOTION)
        # Without scales their map is there, too, and not used.
        unused = byte_rows(args.a, width, count, tile.m)
        return {"tokens": tokens, "tokens_part": tokens_part, "sfa": scales if tile.scaled else unused}

    def load(self, ctx: Any, number: Any) -> None:
        """What the loader warp does."""
        from .load import load_tokens

        load_tokens(ctx)

    def first_stage(self, first: Any) -> Any:
        """The ring's first stage, as loaders know it."""
        return first

    def read_stage(self, first: Any) -> Any:
        """The same, as math warps read it."""
        return first


@dataclass(frozen=True)
class ListedRows:
    """Two warps gather rows, each lane 16 bytes at a time.  at_once: K blocks of which a row's scales come with one copy."""

    at_once: int

    warps: ClassVar[int] = 2
    arrivals: ClassVar[int] = 32 * warps
    """Every thread arrives on its own."""
    any_row: ClassVar[bool] = False
    map_names: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[str] = f"{warps} warps gather them, 16 bytes a lane"

    def scale_rows(self, tile: TileShape) -> int:
        """Scales that a stage holds; 0 without scales."""
        return tile.m if tile.scaled else 0

    def scale_places(self, num_stages: int) -> int:
        """Places of the ring of scales, a power of two.  Who copies K block b has waited until b - `num_stages` was read; a place that
        begins at b held those of K blocks up to b - `at_once` * (`scale_places` - 1) - 1."""
        needed = -(-(num_stages + self.at_once - 1) // self.at_once)
        return 1 << (needed - 1).bit_length()

    def scales(self, tile: TileShape, num_stages: int) -> Field:
        """Scales of one K block lie with their stage, those of several in places that no stage owns: they are read after the first of
        their stages is free."""
        rows = self.scale_rows(tile)
        if self.at_once == 1:
            return Field("sfa", (num_stages, align(4 * rows, 128) // 4), F32, 128)
        return Field("sfa", (self.scale_places(num_stages), rows * self.at_once), F32, 128)

    def maps(self, config: Any, args: Any) -> dict[str, MapFields]:
        """No tensor map: threads read rows."""
        return {}

    def load(self, ctx: Any, number: Any) -> None:
        """What warp `number` of those that gather does."""
        from .gather.gather import gather_tokens

        gather_tokens(ctx, number)

    def first_stage(self, first: Any) -> Any:
        """The ring's first stage, as the weight loader knows it."""
        return first

    def read_stage(self, first: Any) -> Any:
        """The same, as math warps read it."""
        from .gather.scaled_stage import gathered_stage

        return gathered_stage(first, self.at_once, self.scale_places(first.ring.depth))


RowSource = LoadedRows | ListedRows
