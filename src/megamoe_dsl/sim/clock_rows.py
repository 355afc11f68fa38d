"""The rows of a vector clock.

Row HAPPENED counts the writes that happened before; rows ASYNC_GLOBAL and ASYNC_SHARED count what a `fence.proxy.async` has also made
visible to the async proxy, in global and in shared memory (PTX ISA, "Memory Consistency Model", "Proxies"). Row READS counts the reads
that happened before: a warp barrier passes on writes, but not another lane's reads (see `lane_order`).
"""

from __future__ import annotations

HAPPENED, ASYNC_GLOBAL, ASYNC_SHARED, READS = 0, 1, 2, 3
ROWS = 4
EVERY = tuple(range(ROWS))
