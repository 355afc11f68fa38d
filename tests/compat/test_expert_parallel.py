"""This project's experts under transformers' implementations of expert parallelism and ours, on two ranks on the CPU."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from tiny_models import tiny

import megamoe_dsl.compat.transformers as adapter
from forked import forked_process
from megamoe_dsl.problem import ProblemError

EPImplementationInterface = pytest.importorskip("transformers.distributed.expert_parallel").EPImplementationInterface  # 5.17 has none


def share_of_a_rank(file: Path, rank: int) -> None:
    """Results of two experts of four on each of two ranks, by what transformers does to bring them their tokens."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    experts, (x, idx, weights) = tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts, routed_tokens()
    experts.config._experts_implementation, experts.num_experts, experts._is_expert_parallel = "megamoe", 2, True
    for name in ("gate_up_proj", "down_proj"):
        getattr(experts, name).data = getattr(experts, name).data[2 * rank : 2 * rank + 2]
    found = {
        name: EPImplementationInterface()[name](experts, mesh, mesh)(x, idx, weights) for name in ("all_reduce", "all_to_all", "megamoe")
    }
    layer = EPImplementationInterface()["megamoe"](experts, mesh, mesh)
    for tokens in (2, 5, 5):  # a layer for each capacity
        assert torch.equal(layer(x[:tokens], idx[:tokens], weights[:tokens]), found["megamoe"][:tokens])
    assert {key: one.problem.max_tokens_per_rank for key, one in layer.layers.items()} == {(1, 2): 1, (4, 2): 4}
    with pytest.raises(ProblemError, match=r"hidden_states.requires_grad = True"):
        layer(x.requires_grad_(), idx, weights)
    torch.save(found, f"{file}.{rank}")
    torch.distributed.destroy_process_group()


def both_ranks(file: Path) -> None:
    """In processes forked from this one, which has imported transformers."""
    ranks = [get_context("fork").Process(target=share_of_a_rank, args=(file, rank)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0


def routed_tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, idx = torch.randn(5, 128, generator=generator).bfloat16(), torch.rand(5, 4, generator=generator).topk(2).indices
    return x, idx, torch.rand(5, 2, generator=generator).bfloat16()


def test_expert_parallel_models_run_these_experts(tmp_path: Path) -> None:
    """Under transformers' own implementations of expert parallelism, and as one layer over the ranks."""
    process = forked_process(both_ranks, (tmp_path / "group",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    expected = adapter.experts_forward(tiny("Qwen3Moe", num_hidden_layers=1).model.layers[0].mlp.experts, *routed_tokens()).float()
    for rank in range(2):
        found = torch.load(f"{tmp_path}/group.{rank}")
        assert list(found) == ["all_reduce", "all_to_all", "megamoe"]
        assert torch.equal(found["megamoe"].float(), expected)
        assert all((one.float() - expected).norm() < 0.01 * expected.norm() for one in found.values())
