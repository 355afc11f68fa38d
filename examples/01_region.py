"""A buffer is declared once, as named fields; size, offsets, device addresses and torch views follow from it."""

import torch

from megamoe_dsl.layouts import BF16, U8, U32, U64, Field, Region

# Fields one after another, each at the next multiple of its alignment.
header = Region.stack("header", Field("epoch", (1,), U32), Field("counts", (2, 4), U64))

# Alternatives that take turns on the same bytes: a ring while tiles are computed, rows to sum afterwards.
ring = Region.stack("ring", Field("tiles", (3, 1024), U8, 128))
rows = Region.stack("rows", Field("sums", (2, 512), BF16, 128))
region = Region.stack("example", header, Region.overlay("phase", compute=ring, combine=rows))

print(f"{region.name}: {region.size} bytes, aligned to {region.alignment}")
for place in region:
    live = ", ".join(f"{overlay}={choice}" for overlay, choice in place.lifetimes) or "always"
    print(f"  {place.field.name:8} [{place.offset:5}, {place.end:5})  {place.field.dtype.name} {place.field.shape}  live: {live}")

# Two fields may share bytes only when they are never live together.
assert region["tiles"].offset == region["sums"].offset and region["tiles"].lifetimes != region["sums"].lifetimes

# The same declaration gives offsets (of traced integers too, inside a kernel) and host views.
buffer = torch.zeros(region.size, dtype=torch.uint8)
region.view(buffer, "counts")[1, 2] = 7
offset = region.offset("counts", 1, 2)
print(f"counts[1, 2] lies at byte {offset} and holds {buffer[offset]}")

# Mistakes are caught where they are made.
try:
    region.offset("counts", 2, 0)
except IndexError as error:
    print(f"IndexError: {error}")
