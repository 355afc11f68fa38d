"""A checkpoint in a recipe's format: files of experts in checkpoint order, and an index.

Files are written atomically.  A run skips files that exist for the same source, layer, experts and recipe, so an interrupted run can be
repeated.  Several runs may convert layers into one folder, also at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ..cuda_device import require_usable
from ..json_file import replacing
from ..layouts.arith import align
from ..problem import CHANNEL_STEP, Problem, ProblemError, integer_between
from ..quant import WEIGHT_NAMES
from .experts import PublishedExperts, find_layers
from .files import INDEX, Checkpoint, CheckpointError, read_index, safetensors_library
from .published import OWN, OWN_STEM, PUBLISHED

FILE_BYTES = 2 << 30
INDEX_NAME = "model.safetensors.index.json"
OWN_FILE = re.compile(r"layer-\d+-experts-\d+-\d+\.safetensors")


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
    progress                      called before each file and at the end, with files that are written and files altogether

    Returns the files.  Raises `CheckpointError`, `ProblemError`, and OSError.
    """
    place = require_usable(device)
    checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
    integer_between("file_bytes", file_bytes, 1, 1 << 50, "between 1 and 2^50")
    _check_place(folder, checkpoint)
    parts: list[ExpertFile] = []
    for layer in dict.fromkeys(find_layers(checkpoint) if layers is None else layers):
        experts = PublishedExperts.of(checkpoint, layer)
        hidden, intermediate = (align(channels, CHANNEL_STEP) for channels in experts.shape)
        problem = Problem(hidden, intermediate, experts.num_experts, 1, max_tokens_per_rank=1, recipe=recipe)
        if not ignore_biases:
            experts.check_no_biases("converted files have no place for a bias: leave it out with ignore_biases (--ignore-biases)")
        if problem.formats.weights not in OWN:
            raise ProblemError("recipe", recipe, "one without factors: a layer loads such experts as they are published")
        experts.check(problem, expand=expand, ignore_biases=True)
        step = max(1, int(file_bytes // (3 * problem.hidden * problem.intermediate * problem.formats.weights.bytes_per_value)))
        count = experts.num_experts
        parts += [ExpertFile(experts, problem, first, min(first + step, count)) for first in range(0, count, step)]
    if not parts:
        raise CheckpointError("has no experts in a published layout", file=checkpoint.path)
    _kept_entries(folder, {part.experts.layer for part in parts}, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    for done, part in enumerate(parts):
        if progress is not None:
            progress(done, len(parts))
        _write_part(part, folder / part.name, place)
    _enter(folder, parts, recipe)
    if progress is not None:
        progress(len(parts), len(parts))
    return [folder / part.name for part in parts]


def _check_place(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises `CheckpointError` for a folder with files of another checkpoint: a new index would hide them."""
    home = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if folder.exists() and folder.samefile(home):
        raise CheckpointError("the folder of the checkpoint itself: must be another one", file=folder)
    others = [file for file in sorted(folder.glob("*.safetensors")) if not OWN_FILE.fullmatch(file.name)]
    others += [file for file in sorted(folder.glob(INDEX)) if file.name != INDEX_NAME]
    if others:
        raise CheckpointError(f"holds {others[0].name}, a file of another checkpoint: must be another folder", file=folder)


def _kept_entries(folder: Path, layers: Iterable[int], recipe: str) -> dict[str, str]:
    """Entries of the folder's index for other layers.  Raises `CheckpointError` if they have another recipe."""
    index = folder / INDEX_NAME
    if not os.path.lexists(index):
        return {}
    converted = tuple(OWN_STEM.format(layer=layer, expert="") for layer in layers)
    weight_map, before = read_index(index)
    kept = {name: file for name, file in weight_map.items() if not name.startswith(converted)}
    for name, file in kept.items():
        if not OWN_FILE.fullmatch(file):
            raise CheckpointError(f"names {file}, a file of another checkpoint: must be in another folder", file=index, tensor=name)
    if kept and before != recipe:
        raise CheckpointError(f"has other layers in recipe {before}: recipe {recipe} must have another folder", file=index)
    return kept


def _enter(folder: Path, parts: Sequence[ExpertFile], recipe: str) -> None:
    """Adds the files' tensors to the folder's index and keeps entries of other layers."""
    with _alone_in(folder):
        kept = _kept_entries(folder, {part.experts.layer for part in parts}, recipe)
        found = {**kept, **{name: part.name for part in parts for name in part.tensor_names()}}
        text = json.dumps({"metadata": {"recipe": recipe}, "weight_map": found}, indent=1)
        with replacing(folder / INDEX_NAME) as partial:
            partial.write_text(text, encoding="utf-8")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Locks the folder against other processes, where the file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_part(part: ExpertFile, place: Path, device: torch.device) -> None:
    library = safetensors_library()
    if place.is_file():
        try:
            with library.safe_open(str(place), framework="pt") as file:
                if file.metadata() == part.metadata and set(file.keys()) == set(part.tensor_names()):
                    return
        except library.SafetensorError:
            pass  # damaged: made again
    tensors = dict(zip(part.tensor_names(), part.tensors(device), strict=True))
    try:
        with replacing(place) as partial:
            library.torch.save_file(tensors, str(partial), metadata=part.metadata)
    except library.SafetensorError as error:
        raise CheckpointError(f"cannot be written ({error})", file=place) from None
