"""Copies of what a launch left in a rank's memory, and where two launches on the same inputs part: the stage that was wrong first.

A launch overwrites only what it uses again: pool rows, their scales and the combine rows of the last one stay until the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..kernels.mega_moe.target import Config
from ..layouts.pool import pool_blocks
from ..layouts.scale_factors import CHANNELS_PER_WORD
from ..problem import Problem
from ..runtime.buffers import RankBuffers

KEY = "token_src_metadata"
SCALES = ("l1_sf", "l2_sf")
STAGES = {
    KEY: "dispatch",
    "l1_topk_weights": "pull",
    "l1_sf": "pull",
    "l1_acts": "pull",
    "l2_sf": "Linear1",
    "l2_acts": "Linear1",
    "combine": "Linear2",
}
"""Fields that are copied, in the order in which a launch writes them, and who writes them."""


@dataclass(frozen=True)
class Difference:
    """Of one pool row, or combine row, of a rank.

    expert  global; of a combine row, the one whose result it is
    row     in the pool; of a combine row, slot * max_tokens_per_rank + token
    blocks  of 128 channels that differ; none where the field has no channels
    """

    stage: str
    field: str
    expert: int
    row: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The copied fields of a rank, as the kernel of `config` left them."""

    config: Config
    fields: Mapping[str, torch.Tensor]

    @classmethod
    def take(cls, buffers: RankBuffers) -> Snapshot:
        """Copies on the current stream."""
        return cls(buffers.config, {name: buffers.view(name).clone() for name in STAGES})

    def cpu(self) -> Snapshot:
        return Snapshot(self.config, {name: one.cpu() for name, one in self.fields.items()})

    def row(self, field: str, expert: int, received: Sequence[int], index: int) -> torch.Tensor:
        """Row `index` of a local expert as bytes, [blocks of 128 channels, bytes of a block]."""
        m_block, place = divmod(index, self.config.block_m)
        pool_block = pool_blocks(list(received), self.config.block_m)[expert] + m_block
        if field in SCALES:
            return self.fields[field][:, self.config.sf_row(pool_block, place)].unsqueeze(1).view(torch.uint8)
        found = self.fields[field][pool_block * self.config.block_m + place].reshape(-1).view(torch.uint8)
        return found.view(-1, CHANNELS_PER_WORD) if field.endswith("acts") else found.view(1, -1)

    def rows(self, expert: int, received: Sequence[int]) -> dict[bytes, int]:
        """Indices of a local expert's rows by where their results go, which names a token and a slot in every launch."""
        return {self.row(KEY, expert, received, i).numpy().tobytes(): i for i in range(received[expert])}

    def differences(self, wanted: Snapshot, rank: int, topk_idx: Sequence[torch.Tensor]) -> list[Difference]:
        """What is not as in `wanted`, by stage.  `topk_idx` are all ranks' experts, [T, topk] each: the inputs of both launches."""
        problem = self.config.problem
        counts = torch.cat([one.cpu().flatten() for one in topk_idx])
        local = problem.experts_per_rank
        received = counts[counts >= 0].bincount(minlength=problem.num_experts)[rank * local : (rank + 1) * local].tolist()
        one, other = self.cpu(), wanted.cpu()
        found = [*one._pool_differences(other, rank * local, received), *one._combine_differences(other, problem, topk_idx[rank].cpu())]
        return sorted(found, key=lambda one: list(STAGES).index(one.field))

    def _pool_differences(self, wanted: Snapshot, first: int, received: Sequence[int]) -> Iterator[Difference]:
        for expert, tokens in enumerate(received):
            if not tokens:
                continue
            mine, theirs = self.rows(expert, received), wanted.rows(expert, received)
            for key, index in mine.items():
                pool_row = pool_blocks(list(received), self.config.block_m)[expert] * self.config.block_m + index
                if key not in theirs:
                    yield Difference(STAGES[KEY], KEY, first + expert, pool_row)
                    continue
                for field in STAGES:
                    if field in (KEY, "combine"):
                        continue
                    blocks = differing(self.row(field, expert, received, index), wanted.row(field, expert, received, theirs[key]))
                    if blocks:
                        yield Difference(STAGES[field], field, first + expert, pool_row, () if field == "l1_topk_weights" else blocks)

    def _combine_differences(self, wanted: Snapshot, problem: Problem, topk_idx: torch.Tensor) -> Iterator[Difference]:
        mine, theirs = (one.fields["combine"].view(torch.uint8).unflatten(2, (-1, 2 * CHANNELS_PER_WORD)) for one in (self, wanted))
        for token, slot in (topk_idx >= 0).nonzero().tolist():
            blocks = differing(mine[slot, token], theirs[slot, token])
            if blocks:
                row = slot * problem.max_tokens_per_rank + token
                yield Difference(STAGES["combine"], "combine", int(topk_idx[token, slot]), row, blocks)


def differing(one: torch.Tensor, other: torch.Tensor) -> tuple[int, ...]:
    """Blocks, [blocks, bytes], in which two rows differ."""
    return tuple((one != other).any(1).nonzero().flatten().tolist())
