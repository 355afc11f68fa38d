"""One MoE layer's experts of a checkpoint, in the order and the format of `ExpertWeights`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from ..cuda_device import require_usable
from ..hardware.packed_tile import TILE_ROWS
from ..problem import Problem
from ..quant import ExpertWeights, blocks_of, decode_ue8m0, expand_e2m1, no_scales, quantize_e2m1, quantize_e4m3, quantize_weight_e4m3
from ..quant.expert_factors import expert_factors
from ..quant.packed_tiles import weight_shapes
from ..quant.weights import TORCH_DTYPES
from ..recipe import BF16, MXFP4, MXFP8, RECIPES, Format
from .files import Checkpoint, CheckpointError
from .published import FP8_BLOCKS, PUBLISHED, PublishedLayout

Weight = tuple[torch.Tensor, torch.Tensor | None]
"""Codes and scales."""
_UE8M0_BLOCKS = PUBLISHED["deepseek-v4-fp8"].format
NUMBER = "(0|[1-9][0-9]{0,5})"  # of a layer, as names have it


def _scales_of_rows(codes: torch.Tensor, scales: torch.Tensor) -> Weight:
    """The scale of a block, for each of its rows and every 32 channels."""
    blocks, columns = _UE8M0_BLOCKS, MXFP8.scales_of(codes.shape[1])
    rows = scales.repeat_interleave(blocks.rows, dim=0)[: len(codes)]
    return codes, rows.repeat_interleave(blocks.channels // MXFP8.channels, dim=1)[:, :columns]


def _whole(codes: torch.Tensor, block: int) -> torch.Tensor:
    """Rows filled up with zeros to whole blocks."""
    return blocks_of(codes, block).flatten(1)


_CONVERSIONS: dict[tuple[Format, Format], Callable[..., Weight]] = {
    (MXFP4, FP8_BLOCKS): lambda codes, scales: expand_e2m1(_whole(codes, MXFP4.channels // 2), scales),
    # 2^-127, which FP32 has as a subnormal only, is no scale that weights are published with; it stays exact all the same.
    (_UE8M0_BLOCKS, FP8_BLOCKS): lambda codes, scales: (codes, decode_ue8m0(scales).to(torch.float32)),
    (_UE8M0_BLOCKS, MXFP8): _scales_of_rows,
    (Format(BF16), FP8_BLOCKS): lambda codes, _: quantize_weight_e4m3(codes),
    (Format(BF16), MXFP4): lambda codes, _: quantize_e2m1(_whole(codes, MXFP4.channels)),
    (Format(BF16), MXFP8): lambda codes, _: quantize_e4m3(_whole(codes, MXFP8.channels)),
}
DOUBLES = (MXFP4, FP8_BLOCKS)
"""The conversion that takes twice the memory: only when it is asked for."""


def can_convert(stored: Format, wanted: Format) -> bool:
    """Whether `convert` converts weights from one format to the other."""
    return stored == wanted or (stored, wanted) in _CONVERSIONS


def convert(codes: torch.Tensor, scales: torch.Tensor | None, stored: Format, wanted: Format) -> Weight:
    """Converts weights [rows, K] on their device.  Raises ValueError if a value would change, unless `stored` is BF16."""
    return (codes, scales) if stored == wanted else _CONVERSIONS[stored, wanted](codes, scales)


def find_layout(checkpoint: Checkpoint, layer: int) -> PublishedLayout:
    """The published layout that matches a layer's tensors by name and dtype.  Raises `CheckpointError`, which lists the expected names."""
    looked, found = list[str](), list[PublishedLayout]()
    for layout in PUBLISHED.values():
        name = layout.fc2.format(layer=layer, expert=0) + layout.codes
        dtype = checkpoint.describe(name)[0] if name in checkpoint else None
        looked.append(name if dtype is None else f"{name} in {dtype}")
        if dtype in layout.code_dtypes:
            found.append(layout)
    for layout in found:  # what is missing, or of no other layout's dtypes either, is found by a check of every tensor
        scales = f"{layout.fc2.format(layer=layer, expert=0)}{layout.scales}"
        if len(found) == 1 or scales not in checkpoint or checkpoint.describe(scales)[0] in layout.scale_dtypes:
            return layout
    names = ", ".join(dict.fromkeys(looked))
    raise CheckpointError(f"layer {layer} has experts in no published layout; looked for {names}", file=checkpoint.path)


def find_layers(checkpoint: Checkpoint) -> list[int]:
    """Layers with experts, in order."""
    stems = {re.escape(one.fc2 + one.codes) for one in PUBLISHED.values()}
    patterns = [stem.replace(r"\{layer\}", NUMBER).replace(r"\{expert\}", "[0-9]+") for stem in stems]
    matches = (re.fullmatch(pattern, name) for name in checkpoint.files for pattern in patterns)
    return sorted({int(found[1]) for found in matches if found})


@dataclass(frozen=True)
class PublishedExperts:
    """The experts of one layer of a checkpoint, which has them in a published `layout`."""

    checkpoint: Checkpoint
    layout: PublishedLayout
    layer: int

    @classmethod
    def of(cls, path: Path | str | Checkpoint, layer: int) -> PublishedExperts:
        checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
        return cls(checkpoint, find_layout(checkpoint, layer), layer)

    @cached_property
    def num_experts(self) -> int:
        if self.layout.stacked:
            return self.checkpoint.describe(self.name(self.layout.fc2, 0))[1][0]
        expert = 0
        while self.name(self.layout.fc2, expert) in self.checkpoint:
            expert += 1
        return expert

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Published hidden and intermediate, by the first expert's Linear2."""
        _, shape = self.checkpoint.describe(self.name(self.layout.fc2, 0))
        rows, *k = shape[1:] if self.layout.stacked else shape
        if len(k) != (2 if self.layout.blocked else 1) or 0 in shape:
            raise self._error(f"shape {shape}: must be [rows, K]")
        stored = self.layout.format
        return rows, math.prod(k) * TORCH_DTYPES[stored.element].itemsize * 8 // stored.element_bits

    def name(self, stem: str, expert: int, ending: str | None = None) -> str:
        return f"{stem.format(layer=self.layer, expert=expert)}{self.layout.codes if ending is None else ending}"

    def names(self, expert: int, *endings: str | None) -> list[str]:
        """Names of an expert's tensors with one of these endings, by default all codes and scales."""
        wanted = endings or (self.layout.codes, self.layout.scales)
        return [self.name(stem, expert, one) for stem in (*self.layout.fc1, self.layout.fc2) for one in wanted if one is not None]

    def check_no_biases(self, why: str) -> None:
        """Raises `CheckpointError` with the text `why` if the checkpoint has biases of the first expert."""
        for name in self.names(0, self.layout.biases):
            if name in self.checkpoint:
                raise self._error(why, name)

    def check(self, problem: Problem, *, expand: bool = False, ignore_biases: bool = False) -> None:
        """Raises `CheckpointError` unless these can be the experts of `problem`; reads headers only.

        expand, ignore_biases   as `load_experts`
        """
        layout, wanted = self.layout, problem.formats.weights
        hidden, intermediate = self.shape
        for field, published, tile in (("hidden", hidden, TILE_ROWS), ("intermediate", intermediate, TILE_ROWS // 2)):
            if not 0 <= getattr(problem, field) - published < tile:
                raise self._error(f"{field} = {published}: must fill the problem's {getattr(problem, field)} but for less than {tile}")
        if self.num_experts != problem.num_experts:
            raise self._error(f"{self.num_experts} experts: must be the problem's {problem.num_experts}")
        if not can_convert(layout.format, wanted):
            others = ", ".join(name for name, one in RECIPES.items() if can_convert(layout.format, one.weights))
            stored = f"weights of layout {layout.name} ({layout.format.words})"
            raise self._error(f"{stored}, which recipe {problem.recipe} cannot have: must be one of {others}")
        if (layout.format, wanted) == DOUBLES and not expand:
            raise self._error(f"weights in E2M1, and recipe {problem.recipe} takes E4M3, twice the bytes: must be asked for with expand")
        if not (ignore_biases or problem.biases):
            self.check_no_biases("the layer has biases = False: must be True, or the bias be left out on purpose with ignore_biases")
        if problem.biases and layout.biases is None:
            raise self._error(f"layout {layout.name} has no biases, and the layer has biases = True")

    def check_tensors(self, expert: int) -> None:
        """Raises `CheckpointError` for the first tensor of an expert that is missing, or of another dtype or shape; reads headers only."""
        hidden, intermediate = self.shape
        both = 2 if len(self.layout.fc1) == 1 else 1
        for stem in self.layout.fc1:
            self._check_tensor(stem, expert, both * intermediate, hidden)
        self._check_tensor(self.layout.fc2, expert, hidden, intermediate)
        for name in self.names(expert, *self.layout.factors) if self.layout.factors else ():
            self._factor(name)

    def read(self, expert: int, problem: Problem, device: torch.device) -> ExpertWeights:
        """One expert in the problem's format, on a device: an `ExpertWeights` with El = 1.  Nothing but this expert's bytes is read.
        Raises `CheckpointError` that names the tensor and its file."""
        require_usable(device)
        self.check_tensors(expert)
        stored, wanted = self.layout.format, problem.formats.weights
        halves = [self._weight(stem, expert, device) for stem in self.layout.fc1]
        if len(halves) == 1:
            parted = [(None, None) if one is None else _halves(one, self.layout.interleaved) for one in halves[0]]
            halves = list(zip(*parted, strict=True))
        matrices, parts = [*halves, self._weight(self.layout.fc2, expert, device)], list[Weight]()
        for stem, one in zip((self.layout.fc1[0], self.layout.fc1[-1], self.layout.fc2), matrices, strict=True):
            try:
                parts.append(convert(*one, stored, wanted))
            except ValueError as error:
                raise self._error(str(error), self.name(stem, expert)) from None
        gate, up, fc2 = ([one.unsqueeze(0) for one in (codes, no_scales(codes) if sf is None else sf)] for codes, sf in parts)
        found = [*(torch.cat(both, dim=1) for both in zip(gate, up, strict=True)), *fc2]
        biases = self._biases(expert, problem, device) if problem.biases else (None, None)
        others: tuple[torch.Tensor | None, ...] = (*biases, self._factors(expert, device) if wanted.factor else None)
        return ExpertWeights(*found, *others).resized(problem, weight_shapes(problem))

    def _biases(self, expert: int, problem: Problem, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Of both linears as published, FP32 [1, 2I], gate and then up, and [1, H]."""
        found, (hidden, intermediate) = [], self.shape
        for name, rows in zip(self.names(expert, self.layout.biases), (2 * intermediate, hidden), strict=True):
            bias = self.checkpoint.read(name, expert if self.layout.stacked else None).to(device).float()
            if not bool(bias.isfinite().all()):
                raise self._error("a bias is infinite or NaN", name)
            if tuple(bias.shape) != (rows,):
                raise self._error(f"shape {tuple(bias.shape)}: must be {(rows,)}", name)
            found.append(bias)
        return torch.cat(_halves(found[0], self.layout.interleaved))[None], found[1][None]

    def _factors(self, expert: int, device: torch.device) -> torch.Tensor:
        """FP32 [1, 5], those of `ExpertWeights`."""
        of_weight, of_input = self.layout.factors
        *w1, w2 = map(self._factor, self.names(expert, of_weight))
        hidden = self._factor(self.name(self.layout.fc2, expert, of_input))
        try:
            return expert_factors(self._token_factors, torch.stack(w1)[None], hidden, w2[None]).T.contiguous().to(device)
        except ValueError as error:
            raise self._error(str(error), self.name(self.layout.fc1[0], expert)) from None

    @cached_property
    def _token_factors(self) -> torch.Tensor:
        """FP32, of all experts: the largest becomes that of tokens, which are quantized once."""
        experts = range(self.num_experts)
        return torch.stack([self._factor(self.name(stem, one, self.layout.factors[1])) for one in experts for stem in self.layout.fc1])

    def _factor(self, name: str) -> torch.Tensor:
        dtype, shape = self.checkpoint.describe(name)
        if dtype != "F32" or shape not in ((), (1,)):
            raise self._error(f"dtype {dtype}, shape {shape}: must be one F32", name)
        return self.checkpoint.read(name).reshape(())

    def _error(self, what: str, name: str = "") -> CheckpointError:
        name = name or self.name(self.layout.fc2, 0)
        return CheckpointError(what, file=self.checkpoint.files.get(name, self.checkpoint.path), tensor=name)

    def _check_tensor(self, stem: str, expert: int, rows: int, k: int) -> None:
        layout, stored = self.layout, self.layout.format
        width, blocks = k * stored.element_bits // 8, -(-k // stored.channels)  # bytes of a row
        columns = width // TORCH_DTYPES[stored.element].itemsize
        last = (blocks, columns // blocks) if layout.blocked else (columns,)
        wanted = [(self.name(stem, expert), layout.code_dtypes, (rows, *last))]
        if layout.scales is not None:
            wanted.append((self.name(stem, expert, layout.scales), layout.scale_dtypes, (-(-rows // stored.rows), blocks)))
        for name, dtypes, shape in wanted:
            found, size = self.checkpoint.describe(name)
            expected = (self.num_experts, *shape) if layout.stacked else shape
            if found not in dtypes:
                raise self._error(f"dtype {found}: must be {' or '.join(dtypes)}", name)
            if size != expected:
                raise self._error(f"shape {size}: must be {expected}", name)

    def _weight(self, stem: str, expert: int, device: torch.device) -> Weight:
        """Codes [rows, K or bytes of K] and scales of a tensor."""
        row, layout = expert if self.layout.stacked else None, self.layout
        codes = self.checkpoint.read(self.name(stem, expert), row).to(device)
        codes = codes.view(TORCH_DTYPES[layout.format.element]).flatten(1)
        if layout.scales is None:
            return codes, None
        name = self.name(stem, expert, layout.scales)
        scales = self.checkpoint.read(name, row).to(device).view(TORCH_DTYPES[layout.format.scale])
        if bool(_is_no_scale(scales).any()):
            allowed = "0 to 254, of which each is a power of two" if scales.dtype == torch.uint8 else "finite and not negative"
            raise self._error(f"scale {scales[_is_no_scale(scales)][0].item()}: must be {allowed}", name)
        return codes, scales


def _is_no_scale(scales: torch.Tensor) -> torch.Tensor:
    """Which values no quantization gives: NaN (255 of UE8M0), infinite and negative ones."""
    scales = scales.float() if scales.dtype == torch.float8_e4m3fn else scales
    return scales == 255 if scales.dtype == torch.uint8 else ~(scales.isfinite() & (scales >= 0))


def _halves(rows: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, ...]:
    """Rows of gate and of up, from one tensor of both."""
    return (rows[0::2], rows[1::2]) if interleaved else rows.chunk(2)


@dataclass(frozen=True)
class LayerSummary:
    """Experts of one layer: their layout by name, how many, published channels, bytes, files."""

    layer: int
    layout: str
    num_experts: int
    hidden: int
    intermediate: int
    num_bytes: int
    files: tuple[str, ...]


def summarize(checkpoint: Checkpoint) -> list[LayerSummary]:
    """Every layer with experts; reads the headers of all their tensors.  Raises `CheckpointError` for a missing or damaged file, and
    for the first tensor that is missing or has another dtype or shape."""
    found = []
    for experts in (PublishedExperts.of(checkpoint, layer) for layer in find_layers(checkpoint)):
        layout, count, (hidden, intermediate) = experts.layout, experts.num_experts, experts.shape
        files = set[str]()
        for expert in range(1 if layout.stacked else count):
            experts.check_tensors(expert)
            files.update(checkpoint.files[name].name for name in experts.names(expert))
        num_bytes = round(3 * count * hidden * intermediate * layout.format.bytes_per_value)
        found.append(LayerSummary(experts.layer, layout.name, count, hidden, intermediate, num_bytes, tuple(sorted(files))))
    return found
