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
from ..predict.prediction import BUSY, Gain, Prediction, prefers
from ..target import Target
from .tables import ruled


def as_values(one: Prediction, limits: list[Gain]) -> dict[str, object]:
    return {**one.as_dict(), "config": variant_fields(one.config), "gains": {gain.resource: gain.share for gain in limits}}


def print_predictions(console: Console, found: list[Prediction], limits: list[list[Gain]], gpu: Gpu) -> None:
    """A line per point: how busy the GPU's parts are, and which of them it pays to improve."""
    columns = ("tokens", "tile", "us", "GHz", "W", *BUSY, "saved by a resource that is a fifth better")
    table = ruled(f"Predicted for {gpu.name}, {found[0].config.problem.num_ranks} ranks", *columns)
    for one, some in zip(found, limits, strict=True):
        launched, gains = one.launched, ", ".join(f"{gain.resource} {gain.share:.1%}" for gain in some)
        measures = (
            f"{launched.us:.1f}",
            f"{launched.clock:.2f}",
            f"{launched.watts:.0f}",
            *(f"{share:.0%}" for share in one.busy.values()),
        )
        table.add_row(str(one.load.tokens), str(one.config.block_m), *measures, gains)
    console.print(table)


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
    table = ruled(f"{tokens} tokens, predicted for {gpu.name}", "configuration", "us", "to the fastest")
    for one in found:
        verdict = "chosen, " if one.config == config else ""
        verdict += f"{one.us / found[0].us - 1:+.1%}" if prefers(found[0].us, one.us) else "no preference"
        table.add_row(variant_name(one.config), f"{one.us:.1f}", verdict)
    console.print(table)
