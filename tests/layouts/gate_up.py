"""The row order of W1: 8 gate rows, 8 up rows, and so on, so that one thread of the epilogue has both halves of a SwiGLU pair.

Source: article 4.5.4; a 16x256b load gives a thread lanes t / 4 and t / 4 + 8.
"""

from __future__ import annotations

from layout_algebra import logical_product
from megamoe_dsl.layouts.layout import Layout

RUN = 8  # rows of one kind


def gate_up_rows(intermediate: int) -> Layout:
    """(row of the run, (run, half)) -> row of the interleaved matrix; the index of the domain is the row of [gate | up].

    Runs of 8 rows, placed in row-major order over (run, half): half 0, gate, comes first.  `intermediate` is a multiple of 8.
    """
    runs = intermediate // RUN
    return logical_product(Layout(RUN), Layout((runs, 2), (2, 1)))
