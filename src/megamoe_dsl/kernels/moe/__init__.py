"""The fused MoE kernel: dispatch, Linear1, SwiGLU, Linear2 and combine in one persistent launch; `sm100` and `sm90` hold what differs."""
