"""Small checkpoints as models publish them: names and layouts are written out here, not taken from the package's table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from megamoe_dsl.quant import ExpertWeights

LAYER = 3
Tensors = dict[str, torch.Tensor]


def all_experts(ranks: Sequence[ExpertWeights]) -> ExpertWeights:
    """Of all ranks, in order."""
    return ExpertWeights(*(torch.cat([getattr(one, name) for one in ranks]) for name in ("fc1", "fc1_sf", "fc2", "fc2_sf")))


def deepseek_v4(w: ExpertWeights) -> Tensors:
    """int8 codes and E8M0 scales, w1 the gate, w3 the up, w2 Linear2."""
    found, half = {}, w.fc1.shape[1] // 2
    for e in range(len(w.fc1)):
        parts = {"w1": (w.fc1[e, :half], w.fc1_sf[e, :half]), "w3": (w.fc1[e, half:], w.fc1_sf[e, half:]), "w2": (w.fc2[e], w.fc2_sf[e])}
        for name, (codes, scales) in parts.items():
            found[f"layers.{LAYER}.ffn.experts.{e}.{name}.weight"] = codes.view(torch.int8)
            found[f"layers.{LAYER}.ffn.experts.{e}.{name}.scale"] = scales.view(torch.float8_e8m0fnu)
    return found


def deepseek_v3(w: ExpertWeights) -> Tensors:
    """E4M3 with FP32 scales of 128 x 128."""
    found, half = {}, w.fc1.shape[1] // 2
    cut = half // 128
    for e in range(len(w.fc1)):
        parts = {
            "gate_proj": (w.fc1[e, :half], w.fc1_sf[e, :cut]),
            "up_proj": (w.fc1[e, half:], w.fc1_sf[e, cut:]),
            "down_proj": (w.fc2[e], w.fc2_sf[e]),
        }
        for name, (codes, scales) in parts.items():
            found[f"model.layers.{LAYER}.mlp.experts.{e}.{name}.weight"] = codes
            found[f"model.layers.{LAYER}.mlp.experts.{e}.{name}.weight_scale_inv"] = scales
    return found


def deepseek_v4_fp8(w: ExpertWeights) -> Tensors:
    """E4M3 with E8M0 scales of 128 x 128, under DeepSeek-V4's names."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    found = {}
    for name, tensor in deepseek_v3(w).items():
        *_, expert, linear, kind = name.split(".")
        scale = kind == "weight_scale_inv"
        bits = (tensor.view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu) if scale else tensor
        found[f"layers.{LAYER}.ffn.experts.{expert}.{names[linear]}.{'scale' if scale else 'weight'}"] = bits
    return found


def gpt_oss(w: ExpertWeights) -> Tensors:
    """All experts in a tensor, gate in even rows and up in odd ones, codes in blocks of 16 bytes; without the biases."""
    stem, half = f"model.layers.{LAYER}.mlp.experts", w.fc1.shape[1] // 2

    def interleaved(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([rows[:, :half], rows[:, half:]], dim=2).flatten(1, 2)

    return {
        f"{stem}.gate_up_proj_blocks": interleaved(w.fc1).unflatten(-1, (-1, 16)),
        f"{stem}.gate_up_proj_scales": interleaved(w.fc1_sf),
        f"{stem}.down_proj_blocks": w.fc2.unflatten(-1, (-1, 16)),
        f"{stem}.down_proj_scales": w.fc2_sf,
    }


def modelopt_nvfp4(w: ExpertWeights, scale_2: torch.Tensor, input_scale: torch.Tensor) -> Tensors:
    """E2M1 with E4M3 scales of 16, and two factors of each of an expert's gate, up and down: float32 [E, 3]."""
    found, half = {}, w.fc1.shape[1] // 2
    for e in range(len(w.fc1)):
        parts = (w.fc1[e, :half], w.fc1_sf[e, :half]), (w.fc1[e, half:], w.fc1_sf[e, half:]), (w.fc2[e], w.fc2_sf[e])
        for i, (name, (codes, scales)) in enumerate(zip(("gate_proj", "up_proj", "down_proj"), parts, strict=True)):
            stem = f"model.layers.{LAYER}.mlp.experts.{e}.{name}"
            found |= {f"{stem}.weight": codes, f"{stem}.weight_scale": scales}
            found |= {f"{stem}.weight_scale_2": scale_2[e, i], f"{stem}.input_scale": input_scale[e, i]}
    return found


def qwen3_moe(fc1: torch.Tensor, fc2: torch.Tensor) -> Tensors:
    """BF16: fc1 [E, 2I, H], fc2 [E, H, I]."""
    found, half = {}, fc1.shape[1] // 2
    for e in range(len(fc1)):
        for name, values in {"gate_proj": fc1[e, :half], "up_proj": fc1[e, half:], "down_proj": fc2[e]}.items():
            found[f"model.layers.{LAYER}.mlp.experts.{e}.{name}.weight"] = values
    return found


FP4: dict[str, Callable[[ExpertWeights], Tensors]] = {"deepseek-v4": deepseek_v4, "gpt-oss": gpt_oss}


def write(folder: Path, tensors: Tensors, files: int = 2, index: bool = True) -> Path:
    """So many files, tensors dealt out in turns, with other tensors of a model beside them."""
    folder.mkdir(exist_ok=True)
    everything = {"embed.weight": torch.zeros(4, 4), **tensors}
    names = [f"model-{i + 1:05d}-of-{files:05d}.safetensors" for i in range(files)]
    place = {name: names[i % files] for i, name in enumerate(everything)}
    for file in names:
        save_file({name: everything[name].contiguous().clone() for name in everything if place[name] == file}, str(folder / file))
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return folder
