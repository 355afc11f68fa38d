"""Names of the engines that no statement of an adapter shows: `touched` reads them here."""

METHODS = (
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.apply",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.create_weights",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.get_fused_moe_quant_config",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.is_monolithic",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.maybe_roundup_sizes",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.supports_eplb",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base.FusedMoEMethodBase.topk_indices_dtype",
    "vllm.model_executor.layers.quantization.base_config.QuantizeMethodBase.process_weights_after_loading",
)
"""What vLLM calls of a method: `ExpertsMethod` has it."""
PARAMETERS = (
    "vllm.model_executor.layers.quantization.mxfp4.Mxfp4MoEMethod.w13_weight",
    "vllm.model_executor.layers.quantization.mxfp4.Mxfp4MoEMethod.w13_weight_scale",
    "vllm.model_executor.layers.quantization.mxfp4.Mxfp4MoEMethod.w2_weight",
    "vllm.model_executor.layers.quantization.mxfp4.Mxfp4MoEMethod.w2_weight_scale",
    "sglang.srt.layers.quantization.fp8.Fp8MoEMethod.w13_weight_scale_inv",
    "sglang.srt.layers.quantization.fp8.Fp8MoEMethod.w2_weight_scale_inv",
    "sglang.srt.layers.quantization.mxfp4.Mxfp4MoEMethod.w13_weight_scale",
    "sglang.srt.layers.quantization.mxfp4.Mxfp4MoEMethod.w2_weight_scale",
    "sglang.srt.models.minimax_m3.MiniMaxM3MoE._minimax_activation",
)
"""What is read of experts by its name: parameters that a method makes, and what a model adds."""
