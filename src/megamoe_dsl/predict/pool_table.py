"""The token pool of a launch."""

from __future__ import annotations

from dataclasses import dataclass

from .server import Floats, Ints


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
