"""GEMMs on SM90 whose E2M1 weights stay packed up to the math warps, which decode them: every 128 of K is promoted to FP32."""
