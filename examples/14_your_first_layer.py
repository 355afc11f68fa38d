"""Your first layer: from weights to y, in a CUDA graph, under torch.compile, and from a checkpoint.

Runs on a Hopper GPU, or without one on CPU tensors, with the same bits. docs/tutorials/first_layer.md walks through it.
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from megamoe_dsl import MegaMoE, Problem, SymmetricBuffer, load_experts, moe, quantize_weight_e4m3

device = "cuda" if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9 else "cpu"
tokens, hidden, intermediate, experts, topk = 12, 256, 128, 8, 2
generator = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).bfloat16().to(device)


# 1. Weights: gate rows, then up rows, of every expert; E4M3 with a scale for each 128 x 128.
gate, up = normal(experts, intermediate, hidden) / 16, normal(experts, intermediate, hidden) / 16
down = normal(experts, hidden, intermediate) / 11
w1, w1_sf = quantize_weight_e4m3(torch.cat([gate, up], dim=1))
w2, w2_sf = quantize_weight_e4m3(down)

# 2. A call: y of every token, by its top-k experts.
x, logits = normal(tokens, hidden), normal(tokens, experts).float()
y = moe(x, w1, w1_sf, w2, w2_sf, router_logits=logits, topk=topk)
print(f"y {tuple(y.shape)} {y.dtype} on {y.device}")

# 3. The same in float64, from weights that nobody has quantized.
weights, chosen = logits.double().softmax(dim=1).topk(topk)
weights = weights / weights.sum(dim=1, keepdim=True)
exact = torch.zeros(tokens, hidden, dtype=torch.float64, device=device)
for slot in range(topk):
    of = chosen[:, slot]
    g, u = (torch.einsum("tih,th->ti", one[of].double(), x.double()) for one in (gate, up))
    exact += weights[:, slot, None] * torch.einsum("thi,ti->th", down[of].double(), torch.nn.functional.silu(g) * u)
error = float((y.double() - exact).norm() / exact.norm())
print(f"relative error to float64: {error:.3f}; tokens, weights and activations are E4M3")
assert error < 0.08

# 4. The same bits again, and for a token alone.
arguments = (w1, w1_sf, w2, w2_sf)
assert torch.equal(moe(x, *arguments, router_logits=logits, topk=topk), y)
assert torch.equal(moe(x[3:4], *arguments, router_logits=logits[3:4], topk=topk), y[3:4])

# 5. torch.compile sees one operator.
compiled = torch.compile(lambda x: moe(x, *arguments, router_logits=logits, topk=topk), fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(x), y)

# 6. A CUDA graph: kernels are loaded by now, so the call may be captured.
if device == "cuda":
    graph, static = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph):
        captured = moe(static, *arguments, router_logits=logits, topk=topk)
    graph.replay()
    assert torch.equal(captured, y)
    print("a CUDA graph replays it")

# 7. From a checkpoint: files with the names of Qwen3-MoE, read into the layer for several GPUs, here one.
names = {"gate_proj": gate, "up_proj": up, "down_proj": down}
published = {
    f"model.layers.3.mlp.experts.{e}.{name}.weight": one[e].cpu().contiguous() for name, one in names.items() for e in range(experts)
}
problem = Problem(hidden, intermediate, experts, topk, max_tokens_per_rank=tokens, recipe="fp8xfp8", weigh_results=True)
with tempfile.TemporaryDirectory() as folder:
    save_file(published, Path(folder) / "model.safetensors")
    layer = MegaMoE(problem, symmetric=SymmetricBuffer.allocate(problem, device="cpu") if device == "cpu" else None)
    load_experts(layer, folder, 3)
assert torch.equal(layer(x, chosen, weights.float()), moe(x, *arguments, chosen, weights.float()))
print("MegaMoE, with experts of layer 3 of a checkpoint, has the bits of moe")
