"""Experts chosen from logits, in the simulator: those of the reference, with weights to a few roundings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.kernels.expert_routing.config import TokensConfig
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import ProblemError
from megamoe_dsl.reference.router import hashed_experts, top_experts
from megamoe_dsl.runtime.simulated import memory_of
from megamoe_dsl.target import Target
from ptx_of import artifact
from simulated_experts import simulate_launches

DEEPSEEK_V4: dict[str, Any] = {"scores": "sqrtsoftplus", "scale": 1.5}
DEEPSEEK_V3: dict[str, Any] = {"scores": "sigmoid", "biased": True, "groups": 8, "topk_groups": 4, "scale": 2.5}
CASES = {
    "qwen3-next": TopExpertsProblem(512, 10),
    "deepseek-v3": TopExpertsProblem(256, 8, **DEEPSEEK_V3),
    "gpt-oss, bf16": TopExpertsProblem(128, 4, logits="bf16"),
    "few": TopExpertsProblem(5, 5),
    "deepseek-v4": TopExpertsProblem(256, 6, **DEEPSEEK_V4, biased=True),
    "deepseek-v4, first layers": TopExpertsProblem(256, 6, **DEEPSEEK_V4, hashed=True),
    "hashed softmax, replicas": TopExpertsProblem(40, 3, hashed=True, replicas=3),
    "sigmoid, replicas": TopExpertsProblem(128, 8, "sigmoid", replicas=4),
    "two steps of a group": TopExpertsProblem(192, 3, "sigmoid", groups=3, topk_groups=1),
}


def logits_of(problem: TopExpertsProblem, tokens: int) -> torch.Tensor:
    """Normal ones; of some tokens ones that are equal, infinite, large, low, zeros of both signs, NaNs of both signs."""
    logits = torch.randn(tokens, problem.num_experts, generator=torch.Generator().manual_seed(tokens))
    logits[0] = -1.5
    logits[1] = logits[1].round()
    logits[2, 1:3] = torch.tensor([-torch.inf, 30.0])
    logits[3], logits[4] = logits[3] + 300.0, logits[4].round() - 89.0
    logits[5] = -logits[5].abs()
    logits[5, 1:5] = torch.tensor([-0.0, 0.0, -0.0, 0.0])
    logits[6, 3:5] = torch.tensor([torch.nan, -torch.nan])
    logits[7] = -200.0 - logits[7].abs().round()
    logits[9, 1:] += 200.0
    if problem.groups > 1:  # two groups of equal sums by a sigmoid: of halves, and of one and zeros
        experts = problem.num_experts // problem.groups
        logits[8], logits[8, :experts], logits[8, experts] = -200.0, 0.0, 30.0
    return logits if problem.logits == "f32" else logits.bfloat16()


def tables_of(problem: TopExpertsProblem, tokens: int) -> dict[str, torch.Tensor]:
    """Of some ids past the table, of entries that are no expert, and of 0 to `replicas` places for an expert."""
    generator = torch.Generator().manual_seed(tokens)
    hashed = torch.rand(tokens, problem.num_experts, generator=generator).topk(problem.topk).indices.int()
    hashed[3, 0], hashed[4], hashed[5, 1], hashed[9, 0] = -1, -1, problem.num_experts, -1
    ids = torch.randperm(tokens + 2, generator=generator)[:tokens]
    ids[7], ids[8], ids[9] = -1, 1 << 40, 9
    places = torch.arange(problem.num_experts * problem.replicas, dtype=torch.int32).view(problem.num_experts, -1)
    counts = torch.arange(1, problem.num_experts + 1)[:, None] % (problem.replicas + 1)  # expert 0 has one
    places = places.where(torch.arange(problem.replicas) < counts, -1)
    named = {"token_ids": ids, "hash_table": hashed} if problem.hashed else {}
    return {**named, **({"replicas": places} if problem.replicas else {})}


@pytest.mark.parametrize(("case", "arch"), [*((case, "sm_90a") for case in CASES), ("deepseek-v3", "sm_100a")])
def test_chosen_experts_are_those_of_the_reference(case: str, arch: str) -> None:
    problem, tokens = CASES[case], 21
    logits = logits_of(problem, tokens)
    bias = torch.linspace(-0.1, 0.1, problem.num_experts) if problem.biased else None
    idx, weights = torch.full((tokens, problem.topk), -7), torch.zeros(tokens, problem.topk)
    tables, shift = tables_of(problem, tokens), 5
    read = {"logits": logits, **({} if bias is None else {"bias": bias}), **tables}
    written = {"topk_idx": idx, "topk_weights": weights}
    addresses = {name: tensor.data_ptr() for name, tensor in {**read, **written}.items()}
    config = find_kernel("top_experts").choose(problem, Target.typical(arch, 2), tokens)
    placed = {"token_ids": 0, "hash_table": 0, "replicas": 0, "hash_rows": tokens, "replica_shift": shift} if tables else {}
    arguments = {"bias": 0, **placed, **addresses, "num_tokens": tokens}
    assert not simulate_launches(artifact(config), memory_of(read, written), arguments).findings
    limits = problem.groups, problem.topk_groups, problem.scale
    given = hashed_experts(tables["hash_table"], tables["token_ids"], problem.num_experts) if problem.hashed else None
    rest = given, tables.get("replicas"), shift
    expected_idx, expected = top_experts(logits.float(), problem.topk, problem.scores, bias, *limits, *rest)
    assert torch.equal(idx.int(), expected_idx)
    assert torch.allclose(weights, expected, rtol=2e-6, atol=0, equal_nan=True)


@pytest.mark.sweep
def test_registers_are_enough_for_most_experts() -> None:
    compiled = compile_kernel(TokensConfig(TopExpertsProblem(1024, 32, "sigmoid", groups=32, topk_groups=8), 132))
    assert compiled.resources.stack_bytes == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topk": 9}, "topk = 9: must be at most num_experts = 8"),
        ({"scores": "relu"}, "scores = 'relu': must be one of softmax, sigmoid"),
        ({"logits": "f16"}, "logits = 'f16': must be one of f32, bf16"),
        ({"biased": True}, "biased = True: must be False with scores = softmax"),
        ({"hashed": True, "biased": True, "scores": "sigmoid"}, "hashed = True: must be False with a bias or groups"),
        ({"replicas": 65}, "replicas = 65: must be between 0 and 64"),
        ({"groups": 2}, "groups = 2: must be 1, or such that each has a multiple of 32 of num_experts = 8"),
        ({"topk_groups": 2}, "topk_groups = 2: must be between 1 and groups = 1"),
    ],
)
def test_bad_problems_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        TopExpertsProblem(**{"num_experts": 8, "topk": 2, **fields})
    with pytest.raises(ProblemError, match="num_tokens = -1: must be between 0"):
        find_kernel("top_experts").choose(TopExpertsProblem(8, 2), Target.typical("sm_90a"), -1)
