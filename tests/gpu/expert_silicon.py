"""The layer on one GPU, and experts chosen from logits, in the simulator where the DSL is: for comparison with a GPU's bits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl.artifact.store import ArtifactStore, source_digest
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.expert_routing.problem import TopExpertsProblem
from megamoe_dsl.kernels.registry import choose, kernel_of
from megamoe_dsl.quant import no_scales, quantize_weight_e4m3
from megamoe_dsl.runtime.expert_call import ExpertCall, LayerOperands
from megamoe_dsl.runtime.gemm_tensors import OUTPUT_DTYPES
from megamoe_dsl.target import Target
from prepared_record import read_record, write_record

SUFFIX = ".experts.gz"
WEIGHTS_TOLERANCE = 2e-6
"""Relative: a GPU's `ex2.approx` is not known to the bit."""
MOST, UNIT = 1 << 20, 1 << 18
BETWEEN = ("x_q", "x_sf", "ends", "positions")
"""What `route` leaves, all of which is written."""


@dataclass(frozen=True)
class ExpertCheck:
    """A layer's call; `router` are fields of a `TopExpertsProblem`."""

    name: str
    layer: ExpertLayer
    tokens: int
    router: dict[str, Any] = field(default_factory=dict)

    @property
    def chooses(self) -> TopExpertsProblem:
        """How experts are chosen."""
        return TopExpertsProblem(self.layer.num_experts, self.layer.topk, **self.router)

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, LayerOperands]:
        """Tokens, logits and weights, drawn as integers, which are the same on every host."""
        layer, generator = self.layer, torch.Generator().manual_seed(self.tokens)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randint(-MOST, MOST + 1, shape, generator=generator) / UNIT

        x, logits = draw(self.tokens, layer.hidden).bfloat16(), draw(self.tokens, layer.num_experts)
        shapes = (2 * layer.intermediate, layer.hidden), (layer.hidden, layer.intermediate)
        drawn = [draw(layer.num_experts, *one) for one in shapes]
        w1, w2 = (quantize_weight_e4m3(one) if layer.formats.scaled else (one.bfloat16(), no_scales(one)) for one in drawn)
        biases = [draw(layer.num_experts, rows).to(OUTPUT_DTYPES[layer.biases]) for rows, _ in shapes if layer.biases]
        return x, logits, LayerOperands(*w1, *w2, *biases)

    def configs(self, target: Target) -> list[Any]:
        """Of the choice of experts and of the four launches."""
        return [choose(self.chooses, target, self.tokens), *self.layer.configs(target, self.tokens)]


SIGMOID: dict[str, Any] = {"scores": "sigmoid", "groups": 2, "topk_groups": 1, "scale": 2.5}
CHECKS = (
    ExpertCheck("layer-few", ExpertLayer(256, 128, 8, 2), 5),
    ExpertCheck("layer-many-experts", ExpertLayer(256, 128, 512, 10, gate_up="up_first"), 40),
    ExpertCheck("layer-wide", ExpertLayer(384, 256, 2, 1, gate_up="interleaved", activation="swigluoai"), 300),
    ExpertCheck("layer-groups", ExpertLayer(256, 128, 64, 4), 70, SIGMOID),
    ExpertCheck("layer-gpt-oss", ExpertLayer(160, 96, 4, 2, "interleaved", "swigluoai", "bf16xbf16", biases="bf16"), 9),
    ExpertCheck("layer-gpt-oss-tall", ExpertLayer(96, 160, 2, 1, "interleaved", "swigluoai", "bf16xbf16", biases="f32"), 200),
)


def sources(check: ExpertCheck, target: Target) -> list[str]:
    """Digests of what a case's kernels are made of."""
    return [source_digest(kernel_of(config)) for config in check.configs(target)]


def prepare_check(folder: Path, target: Target, check: ExpertCheck) -> str:
    """Compiles, simulates and writes a case; a line about it."""
    from megamoe_dsl.runtime.simulated import memory_of
    from simulated_experts import simulate_experts, simulate_launches

    torch.set_num_threads(1)
    first, *others = [ArtifactStore(folder).get(config) for config in check.configs(target)]
    x, logits, weights = check.inputs()
    idx, topk_weights = torch.zeros(len(x), check.layer.topk, dtype=torch.int64), torch.zeros(len(x), check.layer.topk)
    written = {"topk_idx": idx, "topk_weights": topk_weights}
    addresses = {name: tensor.data_ptr() for name, tensor in {"logits": logits, **written}.items()}
    simulate_launches(first, memory_of({"logits": logits}, written), {**addresses, "bias": 0, "num_tokens": len(x)}, race=False)
    call = ExpertCall(check.layer, x, idx, topk_weights, weights)
    simulate_experts(others, call, race=False)
    write_record(folder / f"{check.name}{SUFFIX}", sources(check, target), {"results": results(call)})
    return f"{check.name}: {call.y.numel()} elements"


def results(call: ExpertCall) -> dict[str, torch.Tensor]:
    """What every launch made; of rows those that are somebody's."""
    rows = int(call.ends[-1])
    made = {name: getattr(call, name) for name in BETWEEN}
    of_rows = {"sources": call.sources, "h": call.fc1.d, "rows": call.fc2[0].d}
    if call.fc1.d_sf is not None:
        of_rows["h_sf"] = call.fc1.d_sf
    return {
        "topk_idx": call.topk_idx,
        "topk_weights": call.topk_weights,
        **made,
        **{name: tensor[:rows].contiguous() for name, tensor in of_rows.items()},
        "y": call.y,
    }


def differing(folder: Path, target: Target, check: ExpertCheck) -> dict[str, int]:
    """Bytes that this GPU has other than the simulator, of the result of every launch, with the simulator's top-k weights; top-k weights of
    its own that are farther off than its exponentials explain; and bytes of `moe` from logits on that are not those of the launches."""
    from megamoe_dsl.runtime.expert_plan import DeviceExperts
    from megamoe_dsl.runtime.experts import moe
    from megamoe_dsl.runtime.top_experts import top_experts

    record = read_record(folder / f"{check.name}{SUFFIX}", sources(check, target))
    os.environ[FOLDER_VARIABLE] = str(folder)  # where the operators find their kernels
    x, logits, weights = check.inputs()
    expected = record["results"]
    here = LayerOperands(*(None if tensor is None else tensor.cuda() for tensor in weights))
    router = {name: check.router[name] for name in ("scores", "groups", "topk_groups") if name in check.router}
    scale = check.router.get("scale", 1.0)
    idx, topk_weights = top_experts(logits.cuda(), check.layer.topk, scale=scale, **router)
    experts = DeviceExperts(check.layer.configs(target, check.tokens), ArtifactStore(folder), idx.device)

    def result(given: torch.Tensor) -> ExpertCall:
        call = ExpertCall(check.layer, x.cuda(), idx, given, here)
        call.check()
        x_at, idx_at, weights_at, y_at = (tensor.data_ptr() for tensor in (call.x, call.topk_idx, call.topk_weights, call.y))
        fc1 = {"a": x_at} if experts.moves_x else {}
        experts.launch(experts.prepare(call), experts.stream_state.address(), x_at, idx_at, weights_at, y_at, fc1)
        return call

    call, own = result(expected["topk_weights"].cuda()), result(topk_weights)
    biases = {"w1_bias": here.w1_bias, "w2_bias": here.w2_bias}
    layouts = {"gate_up": check.layer.gate_up, "activation": check.layer.activation, **biases}
    chosen: dict[str, Any] = {"router_logits": logits.cuda(), "topk": check.layer.topk, "weight_scale": scale, **router, **layouts}
    y = moe(call.x, here.w1, here.w1_sf, here.w2, here.w2_sf, **chosen)
    far = ~torch.isclose(topk_weights.cpu(), expected["topk_weights"], rtol=WEIGHTS_TOLERANCE, atol=0)
    others = {name: other_bytes(tensor.cpu(), expected[name]) for name, tensor in results(call).items()}
    return {**others, "weights too far": int(far.sum()), "moe": other_bytes(y.cpu(), own.y.cpu())}


def other_bytes(found: torch.Tensor, expected: torch.Tensor) -> int:
    """Bytes that differ."""
    a, b = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (found, expected))  # of one column: any stride is contiguous
    return int((a != b).sum())
