"""The GEMMs of the expert-parallel kernels: those of a CTA that has communication warps, too.

Before a role asks for registers of its own, 512 threads have 128 each, and ptxas assembles no instruction that names more: a wgmma has at
most 128 columns, whose sums take 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....blocks.gemm.config import GemmConfig

MOST_COLUMNS = 128


@dataclass(frozen=True)
class EpGemmConfig(GemmConfig):
    """Of rows that TMA loads."""

    most_columns: ClassVar[int] = MOST_COLUMNS
    loads_weights_first: ClassVar[bool] = False
