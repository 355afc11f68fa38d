"""`megamoe weights`: what a checkpoint holds, and a checkpoint in a recipe's format."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from ..problem import ProblemError
from ..recipe import RECIPES
from .options import either
from .tables import ruled

if TYPE_CHECKING:
    from ..checkpoints.experts import LayerSummary

weights = typer.Typer(no_args_is_help=True, help="Published checkpoints: look at one, or convert its experts.", rich_markup_mode="rich")
Source = Annotated[Path, typer.Argument(help="A folder of safetensors files, or one file.")]


@weights.command()
def inspect(path: Source, as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False) -> None:
    """Say which layers have experts, and in which published layout; every tensor's header is checked, no weight is read."""
    from ..checkpoints import Checkpoint, CheckpointError
    from ..checkpoints.experts import summarize

    found = summarize(Checkpoint(path))
    if not found:
        raise CheckpointError("has no experts in a published layout", file=path)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
    else:
        print_summary(Console(), found)


@weights.command()
def convert(
    path: Source,
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if need be.", file_okay=False)],
    recipe: Annotated[str, typer.Option(help=f"Formats of the layer that will load it: {either(list(RECIPES))}.")],
    layers: Annotated[str | None, typer.Option(help="Layers of the model to convert, as in 3-5,8; all by default.")] = None,
    expand: Annotated[bool, typer.Option(help="FP4 may become FP8: twice the bytes, the same values or an error.")] = False,
    ignore_biases: Annotated[bool, typer.Option(help="Leave out the biases of gpt-oss, which converted files have no place for.")] = False,
    device: Annotated[str, typer.Option(help="Where experts are converted: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Write the experts in the format of a recipe; what is there already from the same source is kept."""
    from ..checkpoints.write import convert_checkpoint
    from ..cuda_device import require_usable

    chosen = None if layers is None else parse_layers(layers)
    if not re.fullmatch("cpu|cuda(:[0-9]{1,2})?", device):
        raise ProblemError("--device", device, "cpu, cuda, or cuda with a number, as in cuda:1")
    place = require_usable(device, "--device")
    bar = Progress(console=Console(stderr=True))
    task = bar.add_task("files", total=None)
    with ExitStack() as shown:

        def show(done: int, total: int) -> None:
            if not bar.live.is_started:  # an error before the first file shows no bar
                shown.enter_context(bar)
            bar.update(task, completed=done, total=total)

        files = convert_checkpoint(
            path, folder, recipe, layers=chosen, expand=expand, ignore_biases=ignore_biases, device=place, progress=show
        )
    Console().print(Text(f"{len(files)} files in {folder}, recipe {recipe}"), soft_wrap=True)


def parse_layers(text: str) -> list[int]:
    """3-5,8 is 3, 4, 5 and 8.  Raises `ProblemError`."""
    found: list[int] = []
    for part in text.split(","):
        read = re.fullmatch("([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        layers = range(int(read[1]), int(read[2] or read[1]) + 1) if read else range(0)
        if not layers:
            raise ProblemError("--layers", text, "numbers up to 9999, and ranges from the lower to the higher, as in 3-5,8")
        found += layers
    return found


def print_summary(console: Console, found: list[LayerSummary]) -> None:
    """A row for each run of layers that differ in nothing but their number and files."""
    headings, rows = ("layers", "layout", "experts", "hidden", "intermediate", "GiB a layer", "files"), []
    alike = groupby(
        enumerate(found), lambda one: (one[1].layer - one[0], one[1].layout, one[1].num_experts, one[1].hidden, one[1].intermediate)
    )
    for run in ([one for _, one in group] for _, group in alike):
        first, last = run[0], run[-1]
        numbers = str(first.layer) if first is last else f"{first.layer} to {last.layer}"
        files = len({name for one in run for name in one.files})
        shape = (first.num_experts, first.hidden, first.intermediate)
        rows.append((numbers, first.layout, *shape, f"{first.num_bytes / 2**30:.3f}", files))
    console.print(ruled("Experts", headings, rows))
