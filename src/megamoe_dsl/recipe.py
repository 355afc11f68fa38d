"""The only table of number formats: what a layer computes with, by name.

Sources: OCP Microscaling Formats 1.0 (UE8M0 scales of 32 values); DeepSeek-V3 technical report, 3.3 (FP32 scales of 1 x 128 and of
128 x 128).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

E4M3, E2M1, BF16 = "e4m3", "e2m1", "bf16"
UE8M0, UE4M3, F32 = "ue8m0", "ue4m3", "f32"
BITS = {E4M3: 8, E2M1: 4, BF16: 16, UE8M0: 8, UE4M3: 8, F32: 32}


@dataclass(frozen=True)
class Format:
    """An element type with its scales: one for every `rows` x `channels` block.  `scale` is None where there are none.

    power_of_two  FP32 scales are powers of two
    factor        a matrix also has an FP32 factor, which scales all of its values
    """

    element: str
    scale: str | None = None
    rows: int = 1
    channels: int = 1
    power_of_two: bool = False
    factor: bool = False

    @property
    def words(self) -> str:
        """For messages: `E4M3 with F32 scales, one for every 128 x 128`."""
        scale = "" if self.scale is None else f" with {self.scale.upper()} scales, one for every {self.rows} x {self.channels}"
        return self.element.upper() + scale

    @property
    def bytes_per_value(self) -> float:
        scale = 0.0 if self.scale is None else BITS[self.scale] / (self.rows * self.channels)
        return (BITS[self.element] + scale) / 8

    @property
    def element_bits(self) -> int:
        return BITS[self.element]

    def scales_of(self, channels: int) -> int:
        """Number of scales of a row of `channels` values; the last one may cover fewer values."""
        return 0 if self.scale is None else -(-channels // self.channels)

    def scale_words(self, channels: int) -> int:
        return 0 if self.scale is None else -(-self.scales_of(channels) * BITS[self.scale] // 32)

    def row_bytes(self, channels: int) -> int:
        return channels * BITS[self.element] // 8


class ExpertFactors(NamedTuple):
    """FP32 factors of a layer's matrices, of formats that have them (NVFP4); each is one expert's or the same for all.

    x       of tokens, the same for all experts of all ranks
    gate    multiplies Linear1's sums of gate
    up      multiplies Linear1's sums of up
    hidden  of activated gate and up
    fc2     multiplies Linear2's sums
    """

    x: Any
    gate: Any
    up: Any
    hidden: Any
    fc2: Any


MXFP8 = Format(E4M3, UE8M0, 1, 32, True)
MXFP4 = Format(E2M1, UE8M0, 1, 32, True)
NVFP4 = Format(E2M1, UE4M3, 1, 16, factor=True)
UNSCALED = Format(BF16)
COMBINE = {one.element: one for one in (UNSCALED, Format(E4M3, UE8M0, 1, 128, True))}
"""Formats of the results that go back to a token's rank, by element; BF16 by default."""


@dataclass(frozen=True)
class Recipe:
    """Formats of a layer's activations and weights, of the input of Linear2, and of the results sent back.

    promoted  partial sums over one block of scales leave the tensor core and are scaled and added in FP32; else the tensor core scales, if
              there are scales at all, and adds over all of K
    """

    name: str
    activations: Format
    weights: Format
    hidden: Format
    promoted: bool
    combine: Format = COMBINE[BF16]

    @property
    def scaled(self) -> bool:
        return self.activations.scale is not None

    @property
    def scales_in_mma(self) -> bool:
        return self.scaled and not self.promoted

    @property
    def sums_known(self) -> bool:
        """Whether Hopper's sums of any data are known to the bit: how its tensor core adds has been measured, and it applies no scales."""
        return not self.scales_in_mma

    @property
    def packs_activations(self) -> bool:
        return self.activations.element == E2M1

    @property
    def decodes(self) -> bool:
        """Whether kernels decode E2M1 weights for a tensor core that takes E4M3; weights then lie in tiles (hardware/packed_tile.py)."""
        return self.promoted and self.weights.element == E2M1


RECIPES = {
    one.name: one
    for one in (
        Recipe("fp8xfp4", MXFP8, MXFP4, MXFP8, promoted=False),
        Recipe("mxf4xmxf4", MXFP4, MXFP4, MXFP4, promoted=False),
        Recipe("mxfp8xmxfp8", MXFP8, MXFP8, MXFP8, promoted=False),
        Recipe("nvfp4xnvfp4", NVFP4, NVFP4, NVFP4, promoted=False),
        Recipe(
            "fp8xfp8",
            activations=Format(E4M3, F32, 1, 128),
            weights=Format(E4M3, F32, 128, 128),
            hidden=Format(E4M3, F32, 1, 128, True),
            promoted=True,
        ),
        Recipe(
            "fp8xmxfp4",
            activations=Format(E4M3, F32, 1, 128),
            weights=MXFP4,
            hidden=Format(E4M3, F32, 1, 128, True),
            promoted=True,
        ),
        Recipe("bf16xbf16", UNSCALED, UNSCALED, UNSCALED, promoted=False),
    )
}
"""By name: activations x weights.  `fp8xfp4`, `mxf4xmxf4` and `fp8xmxfp4` take the same MXFP4 weights, as checkpoints publish them.  The
tensor core scales the MXFP8 or MXFP4 activations of the first two; `fp8xmxfp4` has the activations of `fp8xfp8`, whose sums are promoted.
`mxfp8xmxfp8` has activations and weights in MXFP8.  `bf16xbf16` has no scales."""
