"""What FlashInfer's kernels are given, made by torch: slots in tiles, and rows of up and gate."""

from __future__ import annotations

import torch

from moe_layers.flashinfer_moe import RUN, SortedSlots, up_and_gate


def test_every_slot_lies_in_a_tile_of_its_expert() -> None:
    generator, experts, rows = torch.Generator().manual_seed(0), 5, 4
    topk_idx = torch.rand(20, experts, generator=generator).topk(2, dim=1).indices
    made = SortedSlots.of(topk_idx, experts, rows)
    chosen, there = topk_idx.flatten(), torch.arange(len(made.slots)) < made.ends.repeat_interleave(rows)
    assert int(made.count) == len(made.experts) and sorted(made.slots[there].tolist()) == list(range(topk_idx.numel()))
    assert torch.equal(chosen[made.slots[there].long()].int(), made.experts.repeat_interleave(rows)[there])


def test_up_comes_before_gate_in_runs() -> None:
    w1 = torch.arange(2 * 4 * RUN * 3).view(2, 4 * RUN, 3)
    gate, up = w1.chunk(2, dim=1)
    expected = torch.cat([half[:, first : first + RUN] for first in (0, RUN) for half in (up, gate)], dim=1)
    assert torch.equal(up_and_gate(w1), expected)
