"""Number formats and weight transforms of the FP8 x FP4 MegaMoE, on torch tensors.

`formats` holds the casts (UE8M0, E4M3, E2M1), `weights` the reordering that turns checkpoint weights into what the kernel's TMA
and scale-factor copies expect. Nothing here imports cutlass or needs a GPU.
"""

from megamoe_dsl.quant.formats import (
    E4M3_MAX,
    SCALE_BLOCK,
    decode_e4m3,
    decode_ue8m0,
    dequantize_e2m1,
    dequantize_e4m3,
    e2m1_values,
    e4m3_scale_byte,
    encode_e2m1,
    encode_e4m3,
    encode_ue8m0,
    inverse_scale,
    pack_e2m1,
    quantize_e2m1,
    quantize_e4m3,
    unpack_e2m1,
)
from megamoe_dsl.quant.weights import (
    ExpertWeights,
    TransformedWeights,
    deinterleave_gate_up,
    interleave_gate_up,
    inverse_transform_weights,
    inverse_utccp_scale_order,
    transform_weights,
    utccp_scale_order,
)

__all__ = [
    "E4M3_MAX",
    "SCALE_BLOCK",
    "ExpertWeights",
    "TransformedWeights",
    "decode_e4m3",
    "decode_ue8m0",
    "deinterleave_gate_up",
    "dequantize_e2m1",
    "dequantize_e4m3",
    "e2m1_values",
    "e4m3_scale_byte",
    "encode_e2m1",
    "encode_e4m3",
    "encode_ue8m0",
    "interleave_gate_up",
    "inverse_scale",
    "inverse_transform_weights",
    "inverse_utccp_scale_order",
    "pack_e2m1",
    "quantize_e2m1",
    "quantize_e4m3",
    "transform_weights",
    "unpack_e2m1",
    "utccp_scale_order",
]
