"""`megamoe predict`: how long a call takes on a GPU by the model of performance, and what limits it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..arch import Gpu
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import default_recipe, find_kernel
from ..options.option import naming_options, numbers, option
from ..options.points import PROBLEM, ShapeOptions
from ..predict.calibration import calibrated, calibration_of, find_gpu
from ..predict.nodes import Network, NodePrediction
from ..problem import Problem, ProblemError
from ..target import Target
from .options import CONFIG, DEFAULT_KERNEL, RECIPES, ConfigOptions, either, given_only, takes
from .output_file import require_writable_files, write_whole
from .tables import wide_console

OUTPUT = "Output"


@dataclass(frozen=True)
class PredictOptions(ShapeOptions):
    """Points, the GPU, and what is to be chosen otherwise than by default."""

    tokens: str = option("8,64,512,2048", "Tokens of every rank, as in 8,64,512.", PROBLEM)
    ranks: int | None = option(None, "GPUs of the NVLink domain.", PROBLEM)
    recipe: str | None = option(None, f"Number formats; {RECIPES}. The GPU's first by default.", PROBLEM)
    nodes: str | None = option(None, "Nodes of --ranks GPUs that a network joins, as in 2,4,8.", PROBLEM)
    network: str = option("400Gb", "Bits a second of each GPU's card, as in 400Gb.", PROBLEM)
    network_latency: float = option(30.0, "Microseconds of a collective without a row; an assumption.", PROBLEM)
    groups: int = option(8, "Groups of experts, with --group-limit.", PROBLEM)
    group_limit: int | None = option(None, "Groups that a token's experts are of; all by default.", PROBLEM)
    gpu: str = option("H200", f"{either(calibrated())}.", CONFIG)
    block_m: int | None = option(None, "Tokens of a tile. Chosen by default.", CONFIG)
    block_k: int | None = option(None, "Channels of a stage, 128 or 256 of mxf4xmxf4. Chosen by default.", CONFIG)
    lookahead: int | None = option(None, "Experts that Linear1 is ahead of Linear2. Chosen by default.", CONFIG)
    stages: int | None = option(None, "Depth of the TMA ring; the deepest by default.", CONFIG)

    def config(self, gpu: Gpu, tokens: int) -> MegaMoeConfig:
        """The kernel's configuration for a GPU.  Raises `ProblemError` and `ConfigError`."""
        kernel = find_kernel(DEFAULT_KERNEL)
        tile = {"block_m": self.block_m, "block_k": self.block_k, "lookahead": self.lookahead, "num_stages": self.stages}
        if self.block_k is not None and "block_k" not in kernel.choices(gpu.arch):
            raise ProblemError("block_k", self.block_k, f"left out with --gpu {self.gpu}")
        target = Target(gpu.arch, gpu.num_sms, gpu.name)
        config: MegaMoeConfig = kernel.choose(self.problem(gpu, tokens), target, tokens, **given_only(tile))
        return config

    def problem(self, gpu: Gpu, tokens: int) -> Problem:
        """The layer; with nodes `ranks` are those of one of them.  Raises `ProblemError`."""
        kernel = find_kernel(DEFAULT_KERNEL)
        shape: dict[str, Any] = {"hidden": self.hidden, "intermediate": self.intermediate, "experts": self.experts, "topk": self.topk}
        recipe = self.recipe or default_recipe(kernel, gpu.arch)
        layer = ConfigOptions(
            self.preset, **shape, pool_rows=self.pool_rows, combine=self.combine, ranks=self.ranks, arch=gpu.arch.name, recipe=recipe
        )
        return layer.problem(tokens)

    def over_nodes(self, gpu: Gpu, counts: Sequence[int]) -> list[NodePrediction]:
        """A prediction for each number of nodes and of tokens.  Raises `ProblemError`."""
        gbits = self.network.removesuffix("Gb")
        if not gbits.isdigit() or not int(gbits):
            raise ProblemError("network", self.network, "gigabits a second, as in 400Gb")
        network, calibration = Network(float(gbits), self.network_latency), calibration_of(gpu.name)
        groups = (1, 1) if self.group_limit is None else (self.groups, self.group_limit)
        return [
            NodePrediction.of(self.problem(gpu, tokens), tokens, nodes, network, gpu, calibration, *groups)
            for nodes in numbers("nodes", self.nodes or "", 1)
            for tokens in counts
        ]


@takes(PredictOptions)
def predict(
    given: PredictOptions,
    compare: Annotated[bool, typer.Option("--compare", help="Compare other choices of the configuration.", rich_help_panel=OUTPUT)] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what limits each point.", rich_help_panel=OUTPUT)] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the launch for Perfetto.", metavar="FILE", rich_help_panel=OUTPUT)] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the launches; with --compare their times.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Predict the time of a call from a model of performance, and say what limits it; no GPU is needed.

    The model's constants were fitted to measured or published times; docs/explanation/predict.md says how far off it is. It has no
    preference among times that differ by less than 5 %.
    """
    with naming_options(PredictOptions):
        from ..bench.variant import variant_name
        from ..pictures import to_svg
        from ..predict.launch import RankLoad
        from ..predict.prediction import Prediction
        from ..predict.timeline import draw, draw_choices, perfetto
        from .predictions import as_values, compare_choices, print_choices, print_nodes, print_predictions

        require_writable_files({"--trace": trace, "--svg": svg})
        gpu, counts = find_gpu(given.gpu), numbers("tokens", given.tokens, 1)
        if (trace or (compare and svg)) and len(counts) > 1:
            raise ProblemError("tokens", given.tokens, "one number with --trace, and with --compare --svg")
        if compare and (as_json or trace):
            raise ProblemError("--compare", compare, "left out with --json and --trace")
        if given.nodes is not None:
            if compare or trace or svg:
                raise ProblemError("--nodes", given.nodes, "left out with --compare, --trace and --svg")
            spread = given.over_nodes(gpu, counts)
            if as_json:
                typer.echo(json.dumps({"gpu": gpu.name, "points": [asdict(one) for one in spread]}, indent=2))
            else:
                print_nodes(wide_console(), spread, gpu)
            return
        configs, calibration, console = [given.config(gpu, tokens) for tokens in counts], calibration_of(gpu.name), wide_console()
        if compare:
            compared = [compare_choices(config, tokens, calibration, gpu) for config, tokens in zip(configs, counts, strict=True)]
            for config, tokens, ranked in zip(configs, counts, compared, strict=True):
                print_choices(console, config, ranked, tokens, gpu)
            if svg is not None:
                write_whole(svg, to_svg(draw_choices({variant_name(one.config): one.us for one in compared[0]}, counts[0], gpu.name)))
            return
        loads = [RankLoad.uniform(config.problem, tokens) for config, tokens in zip(configs, counts, strict=True)]
        found = [Prediction.of(config, load, calibration) for config, load in zip(configs, loads, strict=True)]
        limits = [[] if quick else one.limits for one in found]
        if as_json:
            points = [as_values(one, some) for one, some in zip(found, limits, strict=True)]
            typer.echo(json.dumps({"gpu": gpu.name, "points": points}, indent=2))
        else:
            print_predictions(console, found, limits, gpu)
        if trace is not None:
            write_whole(trace, perfetto(found[0].launched))
        if svg is not None:
            write_whole(svg, to_svg(draw([one.launched for one in found], counts, gpu.name)))
