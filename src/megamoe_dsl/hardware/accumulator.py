"""Where the accumulator of a tcgen05 CTA pair lies in tensor memory.

Source: PTX ISA, tcgen05.mma, "Data path layout"; SM100_FACTS (TMEM).
"""

from __future__ import annotations

from ..layouts.algebra import Layout, join
from .tmem import TMEM_COLUMNS, TMEM_LANES

CTA = TMEM_LANES * TMEM_COLUMNS
"""Index distance between the tensor memories of the two CTAs."""


def pair_m256(n: int) -> Layout:
    """cta_group::2, M = 256: ((row of the CTA, CTA), column) -> lane + 128 * column + CTA * cta.  Row r of a CTA is lane r."""
    return join(Layout((TMEM_LANES, 2), (1, CTA)), Layout(n, TMEM_LANES))


def pair_m128(n: int) -> Layout:
    """cta_group::2, M = 128: ((row of the CTA, CTA), (column, half)) -> index as above.

    64 rows a CTA; the second half of N lies in the lanes below them.
    """
    half = TMEM_LANES // 2
    return join(Layout((half, 2), (1, CTA)), Layout((n // 2, 2), (TMEM_LANES, half)))


def accumulators(n: int, buffers: int, pitch: int) -> Layout:
    """((row, CTA), column, buffer) -> index: `buffers` accumulators of M = 256, the first columns of two of them `pitch` apart."""
    return join(*pair_m256(n).modes, Layout(buffers, pitch * TMEM_LANES))
