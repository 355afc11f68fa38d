"""Oracle of the MegaMoE kernel: what every stage computes, on CPU tensors of all ranks at once.

`routing` says which token goes where, `stages` holds the arithmetic of one expert, `moe` joins them over all ranks, `bounds` says how far
a kernel may be from the oracle on data whose FP32 sums are not exact.
"""

from megamoe_dsl.reference.bounds import error_bound, violations
from megamoe_dsl.reference.moe import MoeResult, mega_moe, mega_moe_stages
from megamoe_dsl.reference.routing import PoolLayout, Routing, dispatch_order, expert_rows, pool_layout, route
from megamoe_dsl.reference.stages import combine, linear1, linear2, requantize, scaled_matmul, swiglu

__all__ = [
    "MoeResult",
    "PoolLayout",
    "Routing",
    "combine",
    "dispatch_order",
    "error_bound",
    "expert_rows",
    "linear1",
    "linear2",
    "mega_moe",
    "mega_moe_stages",
    "pool_layout",
    "requantize",
    "route",
    "scaled_matmul",
    "swiglu",
    "violations",
]
