"""Number formats and weight transforms of the MegaMoE, on torch tensors.

`formats` holds the casts with UE8M0 scales (E4M3, E2M1; fp8xfp4), `block128` those with FP32 scales (fp8xfp8), `expansion` the
step from E2M1 to E4M3 that changes no value, `weights` the reordering that turns checkpoint weights into what the kernel's TMA and
scale-factor copies expect, `placement` the same for one expert at a time. Nothing here imports cutlass or needs a GPU.
"""

from megamoe_dsl.quant.block128 import (
    FP32_SCALE_BLOCK,
    dequantize_e4m3_f32,
    dequantize_weight_e4m3,
    quantize_e4m3_f32,
    quantize_e4m3_pow2,
    quantize_weight_e4m3,
    weight_scale_rows,
)
<<<<<<< HEAD
from megamoe_dsl.quant.expanded import expand_e2m1
=======
from megamoe_dsl.quant.expansion import expand_e2m1
>>>>>>> main
from megamoe_dsl.quant.finite import not_finite
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
    ue8m0_bytes,
    unpack_e2m1,
)
<<<<<<< HEAD
from megamoe_dsl.quant.packed_tiles import PackedWeightsError, pack_tiles, unpack_tiles
=======
from megamoe_dsl.quant.placement import WEIGHT_NAMES, new_weights, place_expert, single_expert, transform_expert
>>>>>>> main
from megamoe_dsl.quant.weights import (
    INDEX_DTYPES,
    ExpertWeights,
    TransformedWeights,
    checkpoint_layout,
    deinterleave_gate_up,
    input_layout,
    interleave_gate_up,
    inverse_order_rows_sm90,
    inverse_tile_sm90,
    inverse_transform_weights,
    inverse_utccp_scale_order,
    order_rows_sm90,
    tile_sm90,
    transform_weights,
    utccp_scale_order,
)

__all__ = [
    "E4M3_MAX",
    "FP32_SCALE_BLOCK",
    "INDEX_DTYPES",
    "SCALE_BLOCK",
    "WEIGHT_NAMES",
    "ExpertWeights",
    "PackedWeightsError",
    "TransformedWeights",
    "checkpoint_layout",
    "decode_e4m3",
    "decode_ue8m0",
    "deinterleave_gate_up",
    "dequantize_e2m1",
    "dequantize_e4m3",
    "dequantize_e4m3_f32",
    "dequantize_weight_e4m3",
    "e2m1_values",
    "e4m3_scale_byte",
    "encode_e2m1",
    "encode_e4m3",
    "encode_ue8m0",
    "expand_e2m1",
    "input_layout",
    "interleave_gate_up",
    "inverse_order_rows_sm90",
    "inverse_scale",
    "inverse_tile_sm90",
    "inverse_transform_weights",
    "inverse_utccp_scale_order",
    "new_weights",
    "not_finite",
    "order_rows_sm90",
    "pack_e2m1",
<<<<<<< HEAD
    "pack_tiles",
=======
    "place_expert",
>>>>>>> main
    "quantize_e2m1",
    "quantize_e4m3",
    "quantize_e4m3_f32",
    "quantize_e4m3_pow2",
    "quantize_weight_e4m3",
    "single_expert",
    "tile_sm90",
    "transform_expert",
    "transform_weights",
    "ue8m0_bytes",
    "unpack_e2m1",
    "unpack_tiles",
    "utccp_scale_order",
    "weight_scale_rows",
]
