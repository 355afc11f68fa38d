"""Predictions as tables and as JSON values."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ..arch import Gpu
from ..bench.candidates import neighbors
from ..bench.variant import variant_fields, variant_name
from ..kernels.moe.config import MegaMoeConfig
from ..predict.calibration import Calibration, calibration_of
from ..predict.launch import RankLoad
from ..predict.nodes import NodePrediction
from ..predict.prediction import BUSY, Gain, Prediction, prefers
from ..target import Target
from .tables import ruled


def as_values(one: Prediction, limits: list[Gain]) -> dict[str, object]:
    return {**one.as_dict(), "config": variant_fields(one.config), "gains": {gain.resource: gain.share for gain in limits}}


def print_predictions(console: Console, found: list[Prediction], limits: list[list[Gain]], gpu: Gpu) -> None:
    """A line per point: how busy the GPU's parts are, and which of them it pays to improve."""
    rows = [
        (
            *(one.load.tokens, one.config.block_m, f"{one.us:.1f}", f"{one.launched.clock:.2f}", f"{one.launched.watts:.0f}"),
            *(f"{share:.0%}" for share in one.busy.values()),
            ", ".join(f"{gain.resource} {gain.share:.1%}" for gain in some),
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
    """A line: what the model says of a configuration on the GPU that most people have of its architecture."""
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
    """A line per choice, as `compare_choices` sorts them, and whether the model prefers the fastest to it."""
    said = [f"{one.us / found[0].us - 1:+.1%}" if prefers(found[0].us, one.us) else "no preference" for one in found]
    chosen = ["chosen, " if one.config == config else "" for one in found]
    rows = [(variant_name(one.config), f"{one.us:.1f}", mark + text) for one, mark, text in zip(found, chosen, said, strict=True)]
    console.print(ruled(f"{tokens} tokens, predicted for {gpu.name}", ("configuration", "us", "to the fastest"), rows))
