"""Models of transformers to time: their public configurations, and tiny ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from megamoe_dsl.kernels.expert_layer import ExpertLayer


@dataclass(frozen=True)
class Model:
    """A class of transformers, its configuration, the shape of its experts, and the tokens of a prompt before decoding."""

    name: str
    config: dict[str, Any]
    layer: ExpertLayer
    prompts: tuple[int, ...] = (512, 2048, 8192)
    batches: tuple[int, ...] = (1, 8, 32, 128)
    device: str = "cuda"
    cached: int = 128

    @property
    def token_counts(self) -> set[int]:
        """Of all calls of a layer."""
        return {*self.prompts, *self.batches, *(batch * self.cached for batch in self.batches), 1}

    def make(self) -> Any:
        """The model on its device, in BF16."""
        import transformers

        config = getattr(transformers, f"{self.name}Config")(**self.config)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(self.device):
                model = getattr(transformers, f"{self.name}ForCausalLM")(config)
        finally:
            torch.set_default_dtype(torch.float32)
        return model.eval().requires_grad_(False)


QWEN3_30B = Model(
    "Qwen3Moe",
    {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    ExpertLayer(2048, 768, 128, 8, recipe="bf16xbf16"),
)
MIXTRAL = Model(
    "Mixtral",
    {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
    },
    ExpertLayer(4096, 14336, 8, 2, recipe="bf16xbf16"),
)
GPT_OSS_20B = Model(
    "GptOss",
    {
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "vocab_size": 201088,
    },
    ExpertLayer(2880, 2880, 32, 4, "interleaved", "swigluoai", "bf16xbf16", biases="bf16"),
    cached=64,  # a graph cannot have a sliding window that is full: transformers then copies a number from the host
)
TINY = Model(
    "Qwen3Moe",
    {
        **QWEN3_30B.config,
        **{"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 64},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2},
    },
    ExpertLayer(128, 128, 4, 2, recipe="bf16xbf16"),
    (3, 5),
    (1, 2),
    "cpu",
)
TINY_GPT_OSS = Model(
    "GptOss",
    {
        **GPT_OSS_20B.config,
        **{"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 64, "sliding_window": 16},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    },
    ExpertLayer(96, 160, 4, 2, "interleaved", "swigluoai", "bf16xbf16", biases="bf16"),
    (3, 5),
    (1, 2),
    "cpu",
)
MODELS = {
    "qwen3-30b-a3b": QWEN3_30B,
    "mixtral-8x7b": MIXTRAL,
    "gpt-oss-20b": GPT_OSS_20B,
    "tiny": TINY,
    "tiny-gpt-oss": TINY_GPT_OSS,
}
"""By their public `config.json`; the tiny ones are for trying this script without a GPU."""
