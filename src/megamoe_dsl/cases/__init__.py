"""Inputs for tests, examples and benchmarks, from one seed.

`random_case` makes all ranks of a small layer; `random_weights` and `random_inputs` make single ranks of large ones, on a GPU if wished.

Exact cases. FP32 sums do not depend on their order when every partial sum, counted in units of the smallest product bit, stays below
2^24; `generators` says how their data meets that. Nothing about the roundings is trivial: gate and up have many more
significant bits than BF16.

What remains is `ex2.approx` and `rcp.approx`, whose last bits are not specified. Top-k weights are redrawn until no activation lies
within 2^-20 of a rounding boundary of its element or of a scale step, so a kernel that is a few ulp off still gives the same codes. Both
values of `fast_math` then give the same result too.
"""

from megamoe_dsl.cases.draw import Case, TokenInputs, check_draw, random_case, random_inputs, random_weights
from megamoe_dsl.cases.routing import random_routing

__all__ = ["Case", "TokenInputs", "check_draw", "random_case", "random_inputs", "random_routing", "random_weights"]
