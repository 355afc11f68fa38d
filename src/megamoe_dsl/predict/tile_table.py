"""What the tiles of a launch take, at one clock, and its token pool."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Floats, Ints


@dataclass(frozen=True)
class TileTable:
    """Tiles of a launch in the order of the schedule, and what each takes; arrays with an entry per tile.

    is_fc2     whether it is of Linear2
    k_blocks   of the tile
    keys       [tiles, 4]: number of the first K block of the weights, of a second CTA's weights, of the tokens, of a second CTA's tokens,
               the K blocks of each in a row; -1 for none
    pools      [tiles, 2]: blocks of the pool that it needs, or fills if it is of Linear1; the same one twice for a single CTA
    arrivals   finished Linear1 tiles it counts as, in each of its pool blocks
    l2_bytes   [tiles, 2]: of a K block of weights and of one of tokens
    hbm_bytes  the same where it is not in L2
    multiply   us of a K block in the tensor core
    epilogue   us
    nvlink     bytes of results for other ranks
    written    bytes that go to memory
    energy     of a K block, in K blocks of 128 x 256 x 128
    """

    is_fc2: Ints
    k_blocks: Ints
    keys: Ints
    pools: Ints
    arrivals: Ints
    l2_bytes: Floats
    hbm_bytes: Floats
    multiply: Floats
    epilogue: Floats
    nvlink: Floats
    written: Floats
    energy: Floats

    def __len__(self) -> int:
        return len(self.k_blocks)


@dataclass(frozen=True)
class PoolTable:
    """Blocks of the token pool: when each is pulled, its bytes, and the Linear1 tiles that fill its intermediate; `weight_keys` K blocks of
    weights come before those of tokens, `key_blocks` of each block, `fc1_keys` of them of Linear1."""

    pulled: Floats
    num_bytes: Floats
    arrivals: Ints
    weight_keys: int
    key_blocks: int
    fc1_keys: int

    def __len__(self) -> int:
        return len(self.pulled)
