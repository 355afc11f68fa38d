"""Layouts: write an order as shape and stride, and ask it questions."""

from megamoe_dsl.hardware import SW128, tmem_16x256b, utccp_row, wavefronts
from megamoe_dsl.layouts import Layout

# A layout maps coordinates to indices. An index of its domain is a coordinate too: the first mode runs fastest.
tile = Layout((4, 8), (8, 1))
print(f"{tile}: (2, 3) -> {tile(2, 3)}, index 14 -> {tile(14)}, injective: {tile.injective}, up to {tile.cosize - 1}")

# UTCCP reads 16 bytes for each of 32 lanes, and row m of a scale atom belongs in lane m % 32, column m / 32. Atoms follow one another.
order = Layout((32, 4, 3), (4, 1, 128))
print(f"UTCCP order of 384 rows: {order}")
assert order.indices() == [utccp_row(row) for row in range(384)]  # what the kernel computes with shifts

# Gate and up rows alternate in runs of 8: runs in row-major order over (run, half).
print(f"gate/up rows of 64: {Layout((8, (4, 2)), (1, (16, 8)))}")

# A swizzle after a layout: a column of eight 128-byte rows then touches every bank once.
rows = Layout((8, 128), (128, 1))
plain = [rows(row, 0) for row in range(8)]
spread = [SW128(byte) for byte in plain]
print(f"wavefronts of a column: {wavefronts(plain, 16)} plain, {wavefronts(spread, 16)} swizzled")

# Registers: (thread, register) -> lane + 32 * column of what a 16x256b load from tensor memory returns.
print(f"tcgen05.ld.16x256b.x1: {tmem_16x256b(1)}")
