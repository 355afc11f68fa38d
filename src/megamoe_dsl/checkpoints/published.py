"""How models publish their experts: names, dtypes, scales, and the order of gate and up.  Each layout says where its facts are from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..recipe import BF16, E2M1, E4M3, F32, MXFP4, MXFP8, NVFP4, UE4M3, UE8M0, UNSCALED, Format

STORED_AS: dict[str, tuple[str, ...]] = {
    E2M1: ("U8", "I8"),  # two in a byte, the first in the low half
    E4M3: ("F8_E4M3",),
    BF16: ("BF16",),
    UE8M0: ("F8_E8M0", "U8"),
    UE4M3: ("F8_E4M3",),
    F32: ("F32",),
}
"""What safetensors files call the dtypes that a format's elements and scales are stored as."""

FP8_BLOCKS = Format(E4M3, F32, 128, 128)
OWN = {FP8_BLOCKS: "megamoe-e4m3", MXFP4: "megamoe-e2m1", MXFP8: "megamoe-mxfp8", UNSCALED: "megamoe-bf16"}
"""Names of the layouts that `megamoe weights convert` writes: one for each format of a recipe's weights."""


@dataclass(frozen=True)
class PublishedLayout:
    """Tensors of one MoE layer's experts.

    name, models  of the layout, and the models that use it
    source        where the facts are from
    format        of the weights (recipe.py)
    fc1           stems of Linear1's tensors: gate and up, or one tensor with the rows of both
    fc2           stem of Linear2's tensor
    codes         ending of the name of a weight
    scales        ending of the name of its scales, of shape [rows / format.rows, K / format.channels]; None where there are none
    stacked       a tensor has all experts in its first dimension; else every expert has its own tensors, and stems contain {expert}
    interleaved   rows of gate and up alternate in the one tensor of Linear1; else gate comes first
    blocked       codes are [rows, K / channels, bytes of a scale's channels] rather than [rows, bytes of K]
    biases        ending of the name of a bias, with a value for each row of fc1 or fc2; None without biases
    factors       NVFP4: endings of the names of a weight's factor and of its input's factor, FP32; else empty

    Stems have {layer} and, unless stacked, {expert}.
    """

    name: str
    models: str
    source: str
    format: Format
    fc1: tuple[str, ...]
    fc2: str
    codes: str
    scales: str | None
    stacked: bool = False
    interleaved: bool = False
    blocked: bool = False
    biases: str | None = None
    factors: tuple[str, ...] = ()

    @property
    def code_dtypes(self) -> tuple[str, ...]:
        """Names of dtypes that a weight may have in a file."""
        return STORED_AS[self.format.element]

    @property
    def scale_dtypes(self) -> tuple[str, ...]:
        return () if self.format.scale is None else STORED_AS[self.format.scale]


_V4 = "layers.{layer}.ffn.experts.{expert}"
_HF = "model.layers.{layer}.mlp.experts.{expert}"
_GPT_OSS = "model.layers.{layer}.mlp.experts"
OWN_STEM = "layers.{layer}.experts.{expert}"
_V4_NAMES: dict[str, Any] = {"fc1": (f"{_V4}.w1", f"{_V4}.w3"), "fc2": f"{_V4}.w2", "codes": ".weight", "scales": ".scale"}
_HF_NAMES: dict[str, Any] = {"fc1": (f"{_HF}.gate_proj", f"{_HF}.up_proj"), "fc2": f"{_HF}.down_proj", "codes": ".weight"}

PUBLISHED = {
    one.name: one
    for one in (
        PublishedLayout(
            "deepseek-v4",
            "DeepSeek-V4-Flash and -Pro",
            "vllm/models/deepseek_v4/nvidia/model.py (names, w1 gate, w3 up, scales per 32); inference/convert.py of the model (nibbles)",
            MXFP4,
            **_V4_NAMES,
        ),
        PublishedLayout(
            "deepseek-v4-fp8",
            "DeepSeek-V4 with the experts in FP8",
            "vllm/models/deepseek_v4/nvidia/model.py (expert_dtype other than fp4); inference/convert.py --expert-dtype fp8 of the model",
            Format(E4M3, UE8M0, 128, 128, True),
            **_V4_NAMES,
        ),
        PublishedLayout(
            "deepseek-v3",
            "DeepSeek-V3, R1 and Kimi-K2, and others with block FP8 (Qwen3-FP8, GLM-4.5-FP8)",
            "transformers: models/deepseek_v3, integrations/finegrained_fp8.py; config.json: quantization_config.weight_block_size",
            FP8_BLOCKS,
            **_HF_NAMES,
            scales=".weight_scale_inv",
        ),
        PublishedLayout(
            "modelopt-nvfp4",
            "what NVIDIA's Model Optimizer makes of DeepSeek-V3, R1, Kimi-K2 and Qwen3-MoE in NVFP4",
            "vllm: model_executor/layers/quantization/modelopt.py (ModelOptNvFp4FusedMoE)",
            NVFP4,
            **_HF_NAMES,
            scales=".weight_scale",
            factors=(".weight_scale_2", ".input_scale"),
        ),
        PublishedLayout(
            "gpt-oss",
            "gpt-oss-120b and -20b",
            "transformers: integrations/mxfp4.py (blocks, scales, nibbles), models/gpt_oss (gate_up[..., ::2] is the gate)",
            MXFP4,
            fc1=(f"{_GPT_OSS}.gate_up_proj",),
            fc2=f"{_GPT_OSS}.down_proj",
            codes="_blocks",
            scales="_scales",
            stacked=True,
            interleaved=True,
            blocked=True,
            biases="_bias",
        ),
        PublishedLayout("qwen3-moe", "Qwen3-MoE and GLM-4.5 in BF16", "transformers: models/qwen3_moe", UNSCALED, **_HF_NAMES, scales=None),
        *(
            PublishedLayout(
                name,
                "what `megamoe weights convert` writes",
                "quant.ExpertWeights, an expert at a time",
                weights,
                fc1=(f"{OWN_STEM}.fc1",),
                fc2=f"{OWN_STEM}.fc2",
                codes="",
                scales=None if weights.scale is None else "_sf",
            )
            for weights, name in OWN.items()
        ),
    )
}
