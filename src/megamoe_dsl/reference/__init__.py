"""Oracle of the MegaMoE kernel: what every stage computes, on tensors of all ranks at once, all on one device."""

from megamoe_dsl.reference.activation import activate
from megamoe_dsl.reference.bounds import error_bound
from megamoe_dsl.reference.moe import LayerInputs, MoeResult, mega_moe_stages
from megamoe_dsl.reference.promoted import Accumulate, hopper_dot, promoted_matmul
from megamoe_dsl.reference.routing import Routing, dispatch_order, expert_rows, route
from megamoe_dsl.reference.stages import combine, linear1, linear2, requantize, scaled_matmul, travel

__all__ = [
    "Accumulate", "LayerInputs", "MoeResult", "Routing", "activate", "combine", "dispatch_order", "error_bound", "expert_rows",
    "hopper_dot", "linear1", "linear2", "mega_moe_stages", "promoted_matmul", "requantize", "route", "scaled_matmul", "travel",
]  # fmt: skip
