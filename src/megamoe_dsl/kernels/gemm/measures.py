"""Measures of the GEMM kernel."""

from __future__ import annotations

from ...sass.measurer import Measure, Measurer

WGMMA = r"\w*GMMA"
STEPS = 4  # wgmmas of a part of a K block
TOKEN_CHUNKS = 2  # of a warpgroup in a tile of 256 rows (blocks/sm90/decoded_rows.py, which needs the DSL)


def measure_gemm(find: Measurer) -> list[Measure]:
    """Of the math warps, where a tile has K blocks enough for a loop, and of the loaders.  Raises `InspectionError`."""
    loaders = [
        *find.tiled_loop("token_loader", "token loader", "load.load_tokens", "UTMALDG", 1 + find.config.tile.scaled),
        *measure_weight_loader(find),
    ]
    return [*(measure_math(find) if has_loop(find) else ()), *loaders]


def has_loop(find: Measurer) -> bool:
    """Whether K blocks of a tile are multiplied in a loop; where sums stay in the tensor core, the first is before it."""
    config = find.config
    return bool(config.most_k_blocks > (config.ahead if config.tile.scaled else 2))


def measure_weight_loader(find: Measurer, boxes: int = 1) -> list[Measure]:
    """Of the weight loader, which fetches so many boxes of a K block, and codes and records of weights that are decoded."""
    fetches = 2 if find.config.problem.decodes else boxes
    return find.tiled_loop("weight_loader", "weight loader", "load.load_weights", "UTMALDG", fetches)


def measure_math(find: Measurer) -> list[Measure]:
    """A K block of a whole tile, one of the places where a row of scales can begin, and a tile without any."""
    config = find.config
    parts = config.tile.chunks(False) * (TOKEN_CHUNKS if config.is_tall else 1)
    loop = find.inner("", **{WGMMA: STEPS * parts * config.ahead})
    tile = find.around(loop)
    inside = [one for one in find.flow.loops if one.body < tile.body]
    return [
        find.measure("math_k_block", "math", "K block", loop, config.ahead),
        find.measure("math_tile", "math", "tile", tile, 1, inside),
    ]
