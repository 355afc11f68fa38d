"""A layer of others with its gradients (bench/moe_layers/training_layers.py): the rows, weights and places that it is given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from moe_layers.training_layers import SCATTERMOE, TrainingSites, training_layers

THEIRS = """
import torch

def parallel_linear(rows, weights, k, experts, slots, ends, gates=None, grouped_in=False, grouped_out=False):
    owners = torch.searchsorted(ends, torch.arange(len(slots)), right=True)
    assert torch.equal(owners, experts)
    found = torch.einsum("rk,rkn->rn", rows if grouped_in else rows[slots // k], weights[owners])
    found = found if grouped_out else torch.zeros_like(found).index_copy(0, slots, found)
    return found if gates is None else (gates.unsqueeze(1) @ found.unflatten(0, gates.shape)).squeeze(1)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scattermoe").mkdir()
    (tmp_path / "scattermoe" / "parallel_experts.py").write_text(THEIRS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("scattermoe", "scattermoe.parallel_experts"):
        monkeypatch.setitem(sys.modules, name, None)  # put back to what it was after the test
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_layer_by_scattermoe_is_the_layer(site: Path) -> None:
    """One expert has no rows."""
    torch.manual_seed(0)
    tensors = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((6, 16), (5, 16, 16), (5, 16, 8), (6, 2))]
    (x, w1, w2, weights), idx = tensors, torch.rand(6, 4).topk(2).indices
    gate, up = torch.einsum("th,tkih->tki", x, w1[idx]).chunk(2, dim=2)
    expected = (torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, w2[idx]) * weights[:, :, None]).sum(1)
    found = training_layers((), TrainingSites(scattermoe=site))[SCATTERMOE].run(x, w1, w2, idx, weights)
    torch.testing.assert_close(found, expected)
    dy = torch.randn_like(found)
    torch.testing.assert_close(torch.autograd.grad(found, tensors, dy), torch.autograd.grad(expected, tensors, dy))
