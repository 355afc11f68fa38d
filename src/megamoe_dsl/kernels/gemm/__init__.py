"""FP8 GEMMs with FP32 block scales, dense and grouped by expert: every 128 of K is promoted to FP32."""
