"""`megamoe demo`: the main job, on real GPUs where there are any that this project has been run on."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..presets import preset as find_preset
from .bench import bench
from .simulate import simulate

PRESET = "flash"
FOLDER = Path(".megamoe")

SIMULATED = """
What this proved: the Python in src/megamoe_dsl/kernels/moe compiled to one SM100 kernel without a GPU. The simulator ran that kernel's
PTX on every warp of both ranks: dispatch, both linears on the simulated tensor cores, SwiGLU, combine. All outputs equal an independent
PyTorch reference bit for bit. Between any two accesses to the same bytes, on either rank, there is a barrier or fence that orders them. The
second launch found its buffers clean. Speed is not simulated."""

MEASURED = """
What this showed: one launch per layer, from dispatch over NVLink to the combined result. us: microseconds per call, back to back and as a
CUDA graph; ceiling: the time that FLOP, HBM or NVLink alone would take; check: sampled tokens of every rank against a PyTorch reference -
the largest error as a share of the bound, and the share of elements that equal the reference to the bit."""


def demo() -> None:
    """Run the layer on this host's Hopper GPUs, up to eight; without any, its SM100 kernel on two simulated ranks.

    Exit codes as those of `megamoe bench` and `megamoe simulate`.
    """
    console = Console()
    ranks = usable_ranks(hopper_gpus())
    if ranks:
        experts = find_preset(PRESET).problem(1).experts_per_rank
        console.print(f"DeepSeek-V4-Flash, {experts} experts per rank, on {ranks} GPU(s); the kernels are compiled first.", soft_wrap=True)
        bench(preset=PRESET, tokens="8,512,2048", ranks=str(ranks), experts_per_rank=experts, artifacts=FOLDER, out=FOLDER / "demo")
        console.print(MEASURED, soft_wrap=True)
        return
    console.print("One MoE layer over 2 ranks: 8 experts, hidden 512, intermediate 512, top-2, 13 and 7 tokens, two launches.")
    simulate(ranks=2, hidden=512, intermediate=512, experts=8, topk=2, tokens="13,7", seed=0, mask=0.2, launches=2)
    console.print(SIMULATED, soft_wrap=True)


def hopper_gpus() -> int:
    """GPUs of this host, when the first is one that has the SM90 kernel."""
    from ..target import local_target

    target = local_target()
    if target is None or target.arch.name != "sm_90a":
        return 0
    import torch

    return torch.cuda.device_count()


def usable_ranks(gpus: int) -> int:
    """The largest power of two up to the number of GPUs, and up to the preset's ranks; 0 without GPUs."""
    most = min(gpus, find_preset(PRESET).num_ranks)
    return 1 << most.bit_length() - 1 if most else 0
