"""The fused MoE layer as separate launches, one for each stage: dispatch, Linear1, SwiGLU, Linear2, combine.  Roles, main loops,
buffers and layouts are those of `mega_moe`."""
