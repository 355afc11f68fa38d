"""Copies of what a launch left in a rank's memory, and where two launches on the same inputs part: the stage that was wrong first.

A launch overwrites only what it uses again: pool rows, their scales and the combine rows of the last one stay until the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from megamoe_dsl.hardware.operand_tile import CHANNELS_PER_WORD
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.layouts.smem_plan import CombineRow
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import blocks_of
from megamoe_dsl.runtime.buffers import RankBuffers
from megamoe_dsl.schedule.fused_moe import HostTable

KEY = "token_src_metadata"
SCALES = ("fc1_sf", "fc2_sf")
STAGES = {
    KEY: "dispatch",
    "fc1_topk_weights": "pull",
    "fc1_sf": "pull",
    "fc1_acts": "pull",
    "fc2_sf": "Linear1",
    "fc2_acts": "Linear1",
    "combine": "Linear2",
}
"""Fields that are copied, in the order in which a launch writes them, and who writes them."""
POOL_FIELDS = tuple(name for name in STAGES if name not in (KEY, "combine"))


@dataclass(frozen=True)
class Difference:
    """Of one pool row, or combine row, of a rank.

    expert  global; of a combine row, the one whose result it is
    row     in the pool; of a combine row, slot * max_tokens_per_rank + token
    blocks  of 128 channels that differ; none where the field has no channels
    """

    field: str
    expert: int
    row: int
    blocks: tuple[int, ...] = ()

    @property
    def stage(self) -> str:
        """The part of the kernel that writes the field."""
        return STAGES[self.field]

    @property
    def order(self) -> int:
        """Place of the field among those that a launch writes."""
        return list(STAGES).index(self.field)


@dataclass(frozen=True)
class Snapshot:
    """The copied fields of a rank, as the kernel of `config` left them."""

    config: MegaMoeConfig
    fields: Mapping[str, torch.Tensor]

    @classmethod
    def take(cls, buffers: RankBuffers) -> Snapshot:
        """Copies on the current stream.  Raises `ProblemError` for a pool that is a ring: a launch overwrites its own rows."""
        if buffers.config.ring_blocks:
            raise ProblemError("pool_rows", buffers.config.pool_rows, "None, or enough for any routing, where rows are to be compared")
        return cls(buffers.config, {name: buffers.view(name).clone() for name in STAGES})

    def cpu(self) -> Snapshot:
        """The same in host memory."""
        return Snapshot(self.config, {name: one.cpu() for name, one in self.fields.items()})

    def row(self, field: str, row: int) -> torch.Tensor:
        """A pool row as bytes, [blocks of 128 channels, bytes of a block]."""
        if field in SCALES:
            return self.fields[field][:, self.config.sf_row(*divmod(row, self.config.block_m))].unsqueeze(1).view(torch.uint8)
        found = self.fields[field][row].reshape(-1).view(torch.uint8)
        return blocks_of(found, CHANNELS_PER_WORD) if field.endswith("acts") else found.view(1, -1)

    def rows(self, received: list[int]) -> list[range]:
        """Pool rows of every local expert, which received so many tokens."""
        starts = [block * self.config.block_m for block in HostTable.of(received, self.config.block_m).first[:-1]]
        return [range(start, start + tokens) for start, tokens in zip(starts, received, strict=True)]

    def keyed(self, rows: range) -> dict[bytes, int]:
        """Rows by where their results go, which names a token and a slot in every launch."""
        return {self.row(KEY, one).numpy().tobytes(): one for one in rows}

    def differences(self, wanted: Snapshot, rank: int, topk_idx: Sequence[torch.Tensor]) -> list[Difference]:
        """What is not as in `wanted`, by stage.  `topk_idx` are all ranks' experts, [T, topk] each: the inputs of both launches."""
        problem = self.config.problem
        counts = torch.cat([one.cpu().flatten() for one in topk_idx])
        local = problem.experts_per_rank
        received = counts[counts >= 0].bincount(minlength=problem.num_experts)[rank * local : (rank + 1) * local].tolist()
        one, other = self.cpu(), wanted.cpu()
        found = [*one._pool_differences(other, rank * local, received), *one._combine_differences(other, problem, topk_idx[rank].cpu())]
        return sorted(found, key=lambda one: one.order)

    def _pool_differences(self, wanted: Snapshot, first: int, received: list[int]) -> Iterator[Difference]:
        for expert, (mine, theirs) in enumerate(zip(self.rows(received), wanted.rows(received), strict=True), first):
            right = wanted.keyed(theirs)
            for key, row in self.keyed(mine).items():
                if key not in right:
                    yield Difference(KEY, expert, row)
                    continue
                for field in POOL_FIELDS:
                    blocks = differing(self.row(field, row), wanted.row(field, right[key]))
                    if blocks:
                        yield Difference(field, expert, row, () if field == "fc1_topk_weights" else blocks)

    @property
    def results(self) -> torch.Tensor:
        """The combine buffer as bytes, [topk, tokens, blocks of 128 channels, bytes of a block]; scales belong to their block."""
        row = CombineRow(self.config.problem.hidden, self.config.problem.formats.combine)
        found = self.fields["combine"].view(torch.uint8)
        values, rest = blocks_of(found[..., : row.first_scale], row.value_bytes * CHANNELS_PER_WORD), found[..., row.first_scale :]
        return torch.cat([values, rest[..., : values.shape[2]].unsqueeze(3)], 3) if row.scaled else values

    def _combine_differences(self, wanted: Snapshot, problem: Problem, topk_idx: torch.Tensor) -> Iterator[Difference]:
        mine, theirs = self.results, wanted.results
        for token, slot in (topk_idx >= 0).nonzero().tolist():
            blocks = differing(mine[slot, token], theirs[slot, token])
            if blocks:
                row = slot * problem.max_tokens_per_rank + token
                yield Difference("combine", int(topk_idx[token, slot]), row, blocks)


def differing(one: torch.Tensor, other: torch.Tensor) -> tuple[int, ...]:
    """Blocks, [blocks, bytes], in which two rows differ."""
    return tuple((one != other).any(1).nonzero().flatten().tolist())
