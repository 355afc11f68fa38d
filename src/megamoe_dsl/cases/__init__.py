"""Inputs for tests, examples and benchmarks, from one seed.

`random_case` makes all ranks of a small layer; `random_weights` and `random_inputs` make single ranks of large ones, on a GPU if wished.

Exact cases have FP32 sums that do not depend on their order (`generators`).  What remains are approximate exponentials and reciprocals:
top-k weights are redrawn until no activation lies within 2^-20 of a rounding boundary of its element or of a scale step, so that a kernel a
few ulp off still gives the same codes.  Both values of `fast_math` then give the same result too.
"""

from megamoe_dsl.cases.draw import Case, TokenInputs, check_draw, random_case, random_inputs, random_weights
from megamoe_dsl.cases.routing import random_routing

__all__ = ["Case", "TokenInputs", "check_draw", "random_case", "random_inputs", "random_routing", "random_weights"]
