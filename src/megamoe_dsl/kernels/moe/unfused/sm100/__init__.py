"""What differs in the stages of SM100: configurations, shared memory, the linear stages' warps, SwiGLU of scales of 32 channels."""
