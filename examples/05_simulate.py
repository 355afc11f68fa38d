"""The compiled PTX runs on simulated ranks; outputs equal a PyTorch reference and every pair of accesses is checked for order."""

import torch

from megamoe_dsl import Inputs, Problem, SimulatedMoE, Target, choose, compile_kernel, random_case

problem = Problem(hidden=256, intermediate=128, num_experts=4, topk=2, num_ranks=2, max_tokens_per_rank=16)
artifact = compile_kernel(choose(problem, Target.typical("sm_100a", 2), 16), line_info=True)

# Data whose sums are exact in FP32, so that no order of summation hides a mistake.  One rank has fewer tokens, some slots are masked.
case = random_case(problem, tokens=[9, 4], seed=0, mask=0.2)
inputs = [Inputs(*rank) for rank in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]

moe = SimulatedMoE(artifact, case.weights, seed=0)
expected = case.reference().y
for launch in range(2):  # the second finds the buffers as the first left them
    y, report = moe(inputs)
    for rank, (ours, reference) in enumerate(zip(y, expected, strict=True)):
        assert torch.equal(ours, reference)
        print(f"launch {launch}, rank {rank}: {ours.numel()} elements equal the reference bit for bit")
    print(f"  {report.instructions:,} warp instructions in {report.seconds:.1f} s, {len(report.findings)} race findings")
    assert not report.findings
