"""The layout algebra: derive an order instead of restating it, and ask it questions."""

from megamoe_dsl.hardware import SW128, stmatrix_b8, tmem_16x256b, utccp_row, wavefronts
from megamoe_dsl.layouts import (
    Layout,
    complement,
    composition,
    identity,
    logical_divide,
    logical_product,
    right_inverse,
    row_major,
    swizzled,
)

# A layout maps coordinates to indices. An index of its domain is a coordinate too: the first mode runs fastest.
tile = Layout((4, 8), (8, 1))
print(f"{tile}: (2, 3) -> {tile(2, 3)}, index 14 -> {tile(14)}")

# Composition reads one layout through another; a divide is a composition with a tile and what it leaves out.
print(f"every other row:      {composition(tile, (Layout(2, 2), None))}")
print(f"tiles of 2 x 4:       {logical_divide(tile, (2, 4))}")
print(f"complement of (2,2):(1,6) in 24: {complement(Layout((2, 2), (1, 6)), 24)}")

# UTCCP reads 16 bytes for each of 32 lanes, and row m of a scale atom belongs in lane m % 32, column m / 32.
# So the atom is "lane and column, in reading order", read through "row m":
atom = composition(row_major(32, 4), identity(128))
order = logical_product(atom, Layout(3))  # three atoms, one after another
print(f"UTCCP order of 384 rows: {order}; inverse {right_inverse(order)}")
assert [order(row) for row in range(384)] == [utccp_row(row) for row in range(384)]  # what the kernel computes with shifts

# Gate and up rows alternate in runs of 8: runs in row-major order over (run, half).
print(f"gate/up rows of 64: {logical_product(Layout(8), Layout((4, 2), (2, 1)))}")

# A swizzle after a layout: a column of eight 128-byte rows then touches every bank once.
rows = Layout((8, 128), (128, 1))
column = [(row, 0) for row in range(8)]
plain, spread = [rows(c) for c in column], [swizzled(SW128, rows)(c) for c in column]
print(f"wavefronts of a column: {wavefronts(plain, 16)} plain, {wavefronts(spread, 16)} swizzled")

# Registers: what a 16x256b load from tensor memory returns is what stmatrix m16n8 b8 wants, up to strides.
print(f"tcgen05.ld.16x256b.x1: {tmem_16x256b(1)}")
print(f"stmatrix.m16n8.b8.x1:  {stmatrix_b8(1)}")
