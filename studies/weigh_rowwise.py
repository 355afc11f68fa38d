"""Weighs a `rowwise` FP8 recipe, whose main loop needs no scales, against the package's promotion every 128 of K (docs/rowwise.md).

    python studies/weigh_rowwise.py compile FOLDER                                   where the DSL is
    python bench/compare_kernels.py --points flash:2048,pro:2048 FOLDER/promoted FOLDER/unpromoted     on a GPU
    python studies/weigh_rowwise.py accuracy                                         anywhere, five minutes on two cores

`compile` makes each kernel twice: as it is, and with a main loop that accumulates all of K in the tensor core (unpromoted.py).  The second
leaves all scales out, so that its results are wrong: it is for timing.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from megamoe_dsl.bench.options import at_least
from rowwise_recipe import DATA, RECIPES, distance, draw, unquantised

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.points import shares_of
from megamoe_dsl.bench.result_file import save
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.presets import preset

POINTS = ",".join(f"{name}:{tokens}" for name in ("flash", "pro") for tokens in (512, 2048, 8192))
LOOPS = {"promoted": (8, 6, 128), "unpromoted": (8, 8, 0)}
"""Folder to what a K block of its kernels must have: wgmmas, those that accumulate, FMAs."""

HEADINGS = """\
| shape | data | recipe | Linear1 output | exact sums | between | y | exact sums | between |
|---|---|---|---|---|---|---|---|---|"""


def compile_both(point: Point, folder: Path) -> None:
    """A kernel in FOLDER/promoted and one in FOLDER/unpromoted.  Raises ValueError when one is not what its folder says, or spills."""
    from main_loop import MainLoop
    from unpromoted import unpromoted

    config = Sm90Config.choose(point.problem, point.tokens)
    if config.swap_ab:
        raise ValueError(f"{point.name} has tiles of {config.block_m} tokens; only the main loop for 128 has a version without promotion")
    for name, context in (("promoted", nullcontext), ("unpromoted", unpromoted)):
        with context():
            artifact = compile_kernel(config)
        loop, use = MainLoop.of(artifact.listing), artifact.resources
        print(f"{point.name:24} {name:10} {loop}, {use.registers} registers, {use.stack_bytes} bytes of stack", flush=True)
        if (loop.wgmmas, loop.accumulating, loop.fmas) != LOOPS[name] or use.stack_bytes:
            raise ValueError(f"{name}: a K block must have wgmmas, accumulating ones and FMAs {LOOPS[name]}, and nothing on the stack")
        ArtifactStore(folder / name).save(artifact)


def weigh(name: str, data: str, tokens: int, seed: int, device: str) -> list[dict[str, Any]]:
    """Errors of every recipe on one expert of a preset, with the tensor core's sums and with exact ones, and how far these two are apart:
    next to the quantisation's error the accumulator's does not show."""
    shape = preset(name)
    expert = draw(data, shape.hidden, shape.intermediate, tokens, seed, device)
    truth = unquantised(expert)
    found = []
    for recipe, run in RECIPES.items():
        hopper, exact = run(expert, "hopper"), run(expert, torch.float64)
        errors = {"tensor_core": distance(hopper, truth), "exact_sums": distance(exact, truth), "between": distance(hopper, exact)}
        found.append({"preset": name, "data": data, "recipe": recipe, "tokens": tokens, "seed": seed, **errors})
    return found


def rows(records: list[dict[str, Any]]) -> list[str]:
    """Lines of the table: means over the draws of a preset, data and recipe."""
    draws: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in records:
        draws.setdefault((one["preset"], one["data"], one["recipe"]), []).append(one)
    columns = [(sums, field) for field in ("h", "y") for sums in ("tensor_core", "exact_sums", "between")]
    means = {key: [f"{fmean(one[sums][field] for one in some):.2%}" for sums, field in columns] for key, some in draws.items()}
    return [f"| {' | '.join((*key, *figures))} |" for key, figures in means.items()]


def weigh_all(presets: list[str], tokens: int, draws: int, out: Path) -> None:
    """Prints mean errors as they come, and writes all to a file in `out`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(HEADINGS)
    records = []
    for name in presets:
        for data in DATA:
            found = [one for seed in range(draws) for one in weigh(name, data, tokens, seed, device)]
            records += found
            print("\n".join(rows(found)), flush=True)
    print(f"wrote {save(out, 'rowwise-accuracy', records)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Weighs a rowwise FP8 recipe against scales per 128 of K.")
    modes = parser.add_subparsers(dest="mode", required=True)
    compiling = modes.add_parser("compile", help="kernels with and without promotion, for bench/compare_kernels.py")
    compiling.add_argument("folder", type=Path)
    compiling.add_argument("--points", type=shares_of, default=POINTS, help="PRESET:TOKENS, separated by commas")
    accuracy = modes.add_parser("accuracy", help="relative errors against float64 on unquantised values")
    accuracy.add_argument("--preset", default="flash,pro")
    accuracy.add_argument("--tokens", type=at_least(1), default=16, help="of a draw")
    accuracy.add_argument("--draws", type=at_least(1), default=3, help="of tokens and weights; the table has their means")
    accuracy.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the JSON file")
    given = parser.parse_args()
    if given.mode == "accuracy":
        return weigh_all(given.preset.split(","), given.tokens, given.draws, given.out)
    try:
        for point in given.points:
            compile_both(point, given.folder)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
