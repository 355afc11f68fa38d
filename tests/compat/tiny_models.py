"""Tiny real models of transformers, with random weights in BF16."""

from __future__ import annotations

from typing import Any

import torch
import transformers

COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "num_experts_per_tok": 2,
}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32}
GROUPED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"num_experts": 4, "head_dim": 64},
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Next": {"num_experts": 4, "head_dim": 64, "shared_expert_intermediate_size": 128, "layer_types": ["full_attention"] * 2},
    "Glm4Moe": {**GROUPED, "head_dim": 64},
    "GptOss": {"num_local_experts": 4, "head_dim": 64, "hidden_size": 160, "intermediate_size": 96},
    "DeepseekV3": {**GROUPED, **LATENT, "head_dim": 16},
}


def tiny(name: str, **changes: Any) -> Any:
    """A model of random weights in BF16, without gradients."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **MODELS.get(name, {}), **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.08)
    return model
