"""`megamoe predict`: how long a call takes on a GPU by the model of performance, and what limits it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ..arch import Gpu
from ..bench.variant import neighbors, variant_fields, variant_name
from ..config_error import parse_integer
from ..kernels.moe.config import MegaMoeConfig
from ..kernels.registry import find_kernel
from ..options.option import leave_out, numbers, option
from ..options.points import PROBLEM
from ..pictures import to_svg
from ..predict.calibration import CALIBRATED, Calibration, calibration_of, find_gpu
from ..predict.launch import RankLoad
from ..predict.nodes import Network, NodePrediction
from ..predict.prediction import BUSY, Prediction, prefers
from ..problem import ProblemError
from ..target import Target
from .options import CONFIG, DEFAULT_KERNEL, LayerOptions, either, takes
from .output_file import require_writable_files, write_whole
from .tables import ruled, wide_console

OUTPUT = "Output"


@dataclass(frozen=True)
class PredictOptions(LayerOptions):
    """Points, a GPU, and fields of the configuration that replace the chosen ones."""

    tokens: str = option("8,64,512,2048", "Tokens of every rank, as in 8,64,512.", PROBLEM)
    nodes: str | None = option(None, "Nodes of --ranks GPUs that a network joins, as in 2,4,8.", PROBLEM)
    network: str = option("400Gb", "Bits a second of each GPU's card, as in 400Gb.", PROBLEM)
    network_latency: float = option(30.0, "Microseconds of a collective without a row; an assumption.", PROBLEM)
    groups: int = option(8, "Groups of experts, with --group-limit.", PROBLEM)
    group_limit: int | None = option(None, "Groups that a token's experts are of; all by default.", PROBLEM)
    gpu: str = option("H200", f"{either([*CALIBRATED])}.", CONFIG)
    compare: bool = option(False, "Compare other choices of the configuration.", OUTPUT)
    quick: bool = option(False, "Leave out what limits each point.", OUTPUT)
    trace: Path | None = option(None, "Write the launch for Perfetto.", OUTPUT)
    svg: Path | None = option(None, "Draw the launches; with --compare their times.", OUTPUT)
    json: bool = option(False, "Print JSON and nothing else.", OUTPUT)

    def config(self, gpu: Gpu, tokens: int) -> MegaMoeConfig:
        target = Target(gpu.arch, gpu.num_sms, gpu.name)
        config: MegaMoeConfig = self.configure(find_kernel(DEFAULT_KERNEL), self.layer(gpu.arch, tokens), target, tokens)
        return config

    def over_nodes(self, gpu: Gpu, counts: Sequence[int]) -> list[NodePrediction]:
        """A prediction for each number of nodes, of `ranks` GPUs each, and of tokens.  Raises `ProblemError`."""
        gbits, latency = parse_integer(self.network.removesuffix("Gb")) or 0, self.network_latency
        if gbits < 1:
            raise ProblemError("network", self.network, "gigabits a second, as in 400Gb")
        if not 0 <= latency < inf:
            raise ProblemError("network_latency", latency, "0 or more microseconds")
        network, calibration = Network(gbits, latency), calibration_of(gpu.name)
        leave_out(self, ("groups",) if self.group_limit is None else (), "no --group-limit")
        groups = (1, 1) if self.group_limit is None else (self.groups, self.group_limit)
        return [
            NodePrediction.of(self.layer(gpu.arch, tokens), tokens, nodes, network, gpu, calibration, *groups)
            for nodes in numbers("nodes", self.nodes or "", 1)
            for tokens in counts
        ]


@takes(PredictOptions)
def predict(given: PredictOptions) -> None:
    """Predict the time of a call from a model of performance, and say what limits it; no GPU is needed.

    The model's constants were fitted to measured or published times; docs/explanation/predict.md lists its errors. Times that differ by
    less than 5 % count as equal.
    """
    from ..predict.timeline import draw, draw_choices, perfetto

    require_writable_files({"--trace": given.trace, "--svg": given.svg})
    gpu, counts, console = find_gpu(given.gpu), numbers("tokens", given.tokens, 1), wide_console()
    if (given.trace or (given.compare and given.svg)) and len(counts) > 1:
        raise ProblemError("tokens", given.tokens, "one number with --trace, and with --compare --svg")
    if given.nodes is None:
        leave_out(given, ("network", "network_latency", "groups", "group_limit"), "no --nodes")
    else:
        leave_out(given, ("compare", "trace", "svg"), "--nodes")
        spread = given.over_nodes(gpu, counts)
        print_json(gpu, map(asdict, spread)) if given.json else print_nodes(console, spread, gpu)
        return
    configs, calibration = [given.config(gpu, tokens) for tokens in counts], calibration_of(gpu.name)
    if given.compare:
        leave_out(given, ("json", "trace"), "--compare")
        compared = [compare_choices(config, tokens, calibration, gpu) for config, tokens in zip(configs, counts, strict=True)]
        for config, tokens, ranked in zip(configs, counts, compared, strict=True):
            print_choices(console, config, ranked, tokens, gpu)
        if given.svg is not None:
            times = {variant_name(one.config): one.us for one in compared[0]}
            write_whole(given.svg, to_svg(draw_choices(times, counts[0], gpu.name)))
        return
    loads = [RankLoad.uniform(config.problem, tokens) for config, tokens in zip(configs, counts, strict=True)]
    found = [Prediction.of(config, load, calibration) for config, load in zip(configs, loads, strict=True)]
    limits: list[dict[str, float]] = [{} if given.quick else one.limits for one in found]
    if given.json:
        points = zip(found, limits, strict=True)
        print_json(gpu, ({**one.as_dict(), "config": variant_fields(one.config), "gains": gains} for one, gains in points))
    else:
        print_predictions(console, found, limits, gpu)
    if given.trace is not None:
        write_whole(given.trace, perfetto(found[0].launched))
    if given.svg is not None:
        write_whole(given.svg, to_svg(draw([one.launched for one in found], counts, gpu.name)))


def print_json(gpu: Gpu, points: Iterable[dict[str, Any]]) -> None:
    typer.echo(json.dumps({"gpu": gpu.name, "points": list(points)}, indent=2))


def print_predictions(console: Console, found: list[Prediction], limits: list[dict[str, float]], gpu: Gpu) -> None:
    """A line per point: how busy the GPU's parts are, and which of them it pays to improve."""
    rows = [
        (
            *(one.load.tokens, one.config.block_m, f"{one.us:.1f}", f"{one.launched.clock:.2f}", f"{one.launched.watts:.0f}"),
            *(f"{share:.0%}" for share in one.busy.values()),
            ", ".join(f"{resource} {share:.1%}" for resource, share in some.items()),
        )
        for one, some in zip(found, limits, strict=True)
    ]
    headings = ("tokens", "tile", "us", "GHz", "W", *BUSY, "saved by a resource that is a fifth better")
    console.print(ruled(f"Predicted for {gpu.name}, {found[0].config.problem.num_ranks} ranks", headings, rows))


def print_nodes(console: Console, found: list[NodePrediction], gpu: Gpu) -> None:
    """A line per number of nodes and tokens: the call, what the network and the launches of it take, and which is the limit."""
    rows = []
    for one in found:
        times = (f"{us:.0f}" for us in (one.us, one.network_us, one.launch_us))
        shares = " ".join(f"{row:.2f}" for row in (one.spread.away_nodes, one.spread.away_ranks, one.spread.away_experts))
        sent = f"{one.sent / 1e6:.1f}"
        rows.append((one.nodes, one.tokens, one.chunks, *times, sent, one.limit, f"{one.spread.nodes:.2f}", shares))
    launch = ("nodes", "tokens", "chunks", "us", "network us", "launches us", "MB sent", "limit")
    console.print(ruled(f"Predicted for {gpu.name}, rows to other nodes", (*launch, "nodes per token", "rows, of ranks, of experts"), rows))


def print_model(console: Console, config: MegaMoeConfig, tokens: int) -> None:
    """Prints the predicted time of a configuration on the typical GPU of its architecture, and the busiest resource."""
    gpu = Target.typical(config.arch).gpu
    assert gpu is not None
    found = Prediction.of(config, RankLoad.uniform(config.problem, tokens), calibration_of(gpu))
    busiest, share = max(found.busy.items(), key=lambda one: one[1])
    busy = f"{busiest} {share:.0%} busy"
    said = f"The model of performance says {found.us:.0f} us for {tokens} tokens on every rank, {gpu}, {busy} (megamoe predict)"
    console.print(Text(said), soft_wrap=True)


def compare_choices(config: MegaMoeConfig, tokens: int, calibration: Calibration, gpu: Gpu) -> list[Prediction]:
    """Predictions of a configuration and of its neighbors, the fastest first."""
    load, target = RankLoad.uniform(config.problem, tokens), Target(gpu.arch, config.num_sms, gpu.name)
    choices = [config, *neighbors(config, tokens, target)]
    return sorted((Prediction.of(one, load, calibration) for one in choices), key=lambda one: one.us)


def print_choices(console: Console, config: MegaMoeConfig, found: list[Prediction], tokens: int, gpu: Gpu) -> None:
    """A line per choice of `compare_choices`: its time, and how much longer than the fastest it takes where that is significant."""
    said = [f"{one.us / found[0].us - 1:+.1%}" if prefers(found[0].us, one.us) else "no preference" for one in found]
    chosen = ["chosen, " if one.config == config else "" for one in found]
    rows = [(variant_name(one.config), f"{one.us:.1f}", mark + text) for one, mark, text in zip(found, chosen, said, strict=True)]
    console.print(ruled(f"{tokens} tokens, predicted for {gpu.name}", ("configuration", "us", "to the fastest"), rows))
