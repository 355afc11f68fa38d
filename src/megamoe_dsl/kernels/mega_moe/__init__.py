"""The fused MoE kernel of SM100: dispatch, Linear1, SwiGLU, Linear2 and combine in one persistent launch."""
