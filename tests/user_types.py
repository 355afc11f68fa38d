"""What type checkers know of a user's lines, the right ones and the wrong ones: `make lint` has mypy read this file."""

from typing import assert_type

import megamoe_dsl
from megamoe_dsl import Inputs, Problem, SimulatedMoE, Target, choose, compile_kernel, random_case
from megamoe_dsl.sim.report import Report

problem = Problem(hidden=512, intermediate=512, num_experts=8, topk=2, num_ranks=2, max_tokens_per_rank=13)
artifact = compile_kernel(choose(problem, Target.typical("sm_100a", 4), num_tokens=13))
case = random_case(problem, tokens=[13, 7], seed=0)
inputs = [Inputs(*rank) for rank in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
y, report = SimulatedMoE(artifact, case.weights)(inputs)
assert_type(report, Report)
assert_type(problem.hidden, int)

megamoe_dsl.Problem(hidden="512")  # type: ignore[arg-type, call-arg]
print(megamoe_dsl.Kernel)  # type: ignore[attr-defined]
