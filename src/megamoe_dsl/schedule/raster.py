"""The order of blocks in a band of rows, chosen so that blocks that run at the same time share rows and columns in the L2 cache."""

from __future__ import annotations

from ..layouts.arith import Int, div, minimum, select


def place_in_bands(number: Int, size: int, m_blocks: Int, n_blocks: int) -> tuple[Int, Int]:
    """(row block, column block) of a number among `m_blocks` by `n_blocks`: bands of up to `size` row blocks follow one another."""
    band = div(number, size * n_blocks)
    rest = number - band * (size * n_blocks)
    if size == 1:
        return band, rest
    row, n_block = there_and_back(rest, band_rows(band, size, m_blocks))
    return band * size + row, n_block


def band_rows(band: Int, size: int, m_blocks: Int) -> Int:
    """Row blocks of a band of up to `size`; 1 for a band past the last row, so that one can divide by it."""
    rows = minimum(m_blocks - band * size, size)
    return select(rows > 0, rows, 1)


def there_and_back(number: Int, rows: Int) -> tuple[Int, Int]:
    """(row block, column block) of a number in a band of `rows` row blocks.

    The columns follow one another, and for each of them the rows, forwards and backwards in turn: of any two blocks that follow one
    another either the row or the column is the same.
    """
    column = div(number, rows)
    row = number - column * rows
    return select((column & 1) == 0, row, rows - 1 - row), column
