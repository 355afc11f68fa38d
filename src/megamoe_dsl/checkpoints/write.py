"""A checkpoint in a recipe's format: files of experts in checkpoint order, and an index.

Files appear whole.  One that is there already, of the same source, layer, experts and recipe, is not made again, so that an interrupted
run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..layouts.arith import align
from ..problem import CHANNEL_STEP, Problem, integer_between
from ..quant import WEIGHT_NAMES
from .experts import PublishedExperts, find_layers
from .files import Checkpoint, CheckpointError, safetensors_library
from .published import OWN, PUBLISHED

FILE_BYTES = 2 << 30
INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class ExpertFile:
    """One file to write: experts [first, end) of a layer."""

    experts: PublishedExperts
    problem: Problem
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"layer-{self.experts.layer:03d}-experts-{self.first:05d}-{self.end - 1:05d}.safetensors"

    @property
    def metadata(self) -> dict[str, str]:
        """What tells this file from one of another conversion."""
        return {"source": str(self.experts.checkpoint.path.resolve()), "layout": self.experts.layout.name, "recipe": self.problem.recipe}

    def tensor_names(self) -> list[str]:
        layout = PUBLISHED[OWN[self.problem.formats.weights]]
        own = PublishedExperts(self.experts.checkpoint, layout, self.experts.layer)
        return [name for expert in range(self.first, self.end) for name in own.names(expert)]

    def tensors(self, device: torch.device) -> Iterator[torch.Tensor]:
        """In the order of `tensor_names`, on the CPU."""
        for expert in range(self.first, self.end):
            weights = self.experts.read(expert, self.problem, device)
            found = (getattr(weights, name)[0] for name in WEIGHT_NAMES)
            yield from (one.cpu().contiguous() for one in found if one.numel())


def recipe_problem(experts: PublishedExperts, recipe: str) -> Problem:
    """A layer of these experts on one rank.  Raises `ProblemError` for a shape that no layer has."""
    hidden, intermediate = (align(channels, CHANNEL_STEP) for channels in experts.shape)
    return Problem(hidden, intermediate, experts.num_experts, 1, max_tokens_per_rank=1, recipe=recipe)


def convert_checkpoint(
    path: Path | str | Checkpoint,
    folder: Path,
    recipe: str,
    *,
    layers: Sequence[int] | None = None,
    expand: bool = False,
    ignore_biases: bool = False,
    device: torch.device | str = "cpu",
    file_bytes: int = FILE_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Writes the experts of some layers, or of all, in a recipe's format, which `load_experts` then loads without a conversion.

    path, expand, ignore_biases   as `load_experts`
    folder                        where files and index go; made if need be
    device                        where experts are converted
    file_bytes                    of a file, about; an expert is never cut
    progress                      called with files that are written and files altogether

    Returns the files.  Raises `CheckpointError`, `ProblemError`, and OSError.
    """
    checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
    integer_between("file_bytes", file_bytes, 1, 1 << 50, "between 1 and 2^50")
    parts: list[ExpertFile] = []
    for layer in find_layers(checkpoint) if layers is None else layers:
        experts = PublishedExperts.of(checkpoint, layer)
        problem = recipe_problem(experts, recipe)
        experts.check(problem, expand=expand, ignore_biases=ignore_biases)
        step = max(1, int(file_bytes // (3 * problem.hidden * problem.intermediate * problem.formats.weights.bytes_per_value)))
        count = experts.num_experts
        parts += [ExpertFile(experts, problem, first, min(first + step, count)) for first in range(0, count, step)]
    if not parts:
        raise CheckpointError("has no experts in a published layout", file=checkpoint.path)
    folder.mkdir(parents=True, exist_ok=True)
    for done, part in enumerate(parts, 1):
        _write_part(part, folder / part.name, torch.device(device))
        if progress is not None:
            progress(done, len(parts))
    index = {"metadata": {"recipe": recipe}, "weight_map": {name: part.name for part in parts for name in part.tensor_names()}}
    _replace(folder / INDEX_NAME, lambda place: place.write_text(json.dumps(index, indent=1), encoding="utf-8"))
    return [folder / part.name for part in parts]


def _write_part(part: ExpertFile, place: Path, device: torch.device) -> None:
    library = safetensors_library()
    if place.exists():
        try:
            with library.safe_open(str(place), framework="pt") as file:
                if file.metadata() == part.metadata and set(file.keys()) == set(part.tensor_names()):
                    return
        except library.SafetensorError:
            pass  # damaged: made again
    tensors = dict(zip(part.tensor_names(), part.tensors(device), strict=True))
    _replace(place, lambda partial: library.torch.save_file(tensors, str(partial), metadata=part.metadata))


def _replace(place: Path, write: Callable[[Path], object]) -> None:
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        write(partial)
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
