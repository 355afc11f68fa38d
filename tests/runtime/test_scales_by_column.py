"""Scales as TMA reads them: column by column, copied where they do not lie so."""

import pytest
import torch

from megamoe_dsl import scales_by_column
from megamoe_dsl.quant import no_scales
from megamoe_dsl.runtime.gemm_scales import has_kernel_strides, rows_of_words, scale_words


def test_scales_whose_columns_overlap_are_copied() -> None:
    """TMA takes no column that begins before the last one has ended."""
    overlapping = torch.arange(16.0).as_strided((8, 2), (1, 4))
    found = scales_by_column(overlapping)
    assert torch.equal(found, overlapping) and found.stride()[1] >= 8


@pytest.mark.parametrize(("rows", "blocks"), [(1, 2), (3, 1), (4, 3), (70, 2)])
def test_scales_keep_their_values_and_are_copied_once(rows: int, blocks: int) -> None:
    given = torch.rand(rows, blocks)
    scales = scales_by_column(given)
    assert torch.equal(scales, given) and scales.stride(1) % 4 == 0
    assert scales_by_column(scales) is scales


def test_scales_that_tma_cannot_read_where_they_are_are_copied() -> None:
    given = torch.rand(17)[1:].view(2, 8).T[:5]
    scales = scales_by_column(given)
    assert given.stride() == scales.stride() == (1, 8) and given.data_ptr() % 16 == 4
    assert torch.equal(scales, given) and scales.data_ptr() % 16 == 0


def test_one_row_or_none() -> None:
    """A row may lie anywhere; columns of no row are apart all the same, and words of no row fill an atom."""
    one, none = torch.zeros(16).as_strided((1, 3), (7, 4)), torch.zeros(16).as_strided((0, 3), (1, 0))
    assert scales_by_column(one) is one and not has_kernel_strides(none)
    assert scales_by_column(none).stride() == (1, 4) and rows_of_words(0) == 128
    absent = no_scales(torch.zeros(3, 5, 256))
    assert scale_words(absent) is absent
