"""Trains a small Qwen3-MoE of transformers by what computes its experts: this project, or transformers itself.

    python bench/transformers_training.py run [--steps N] [--seeds N] [--tiny] [--out FOLDER]      where a GPU and transformers are
    python bench/transformers_training.py table FILE      anywhere: the table of docs/lab/training.md

The data are sequences of a random Markov chain, the same for all: each token has eight successors with unequal chances.  For each
implementation and seed of the weights a record has the loss of every step, steps a second without the first ten, and the most memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import megamoe_dsl.compat.transformers  # registers "megamoe"  # noqa: F401
from records import save_each
from script_options import at_least

IMPLEMENTATIONS = ("megamoe", "grouped_mm")
SUCCESSORS, WARM_UP, LAST = 8, 10, 20
CONFIG = {
    **{"hidden_size": 1024, "intermediate_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 1024},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8},
    **{"norm_topk_prob": True, "max_position_embeddings": 1024, "tie_word_embeddings": False, "output_router_logits": True},
}
TINY = {**CONFIG, "hidden_size": 128, "moe_intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 64, "num_experts": 4}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2, "head_dim": 64}
SHAPES = {False: (16, 512), True: (2, 8)}
"""Sequences of a step and their tokens, by whether the model is tiny."""
RATE = 1e-3


class Chain:
    """A Markov chain over `vocab` tokens."""

    def __init__(self, vocab: int, device: str) -> None:
        self.generator = torch.Generator(device).manual_seed(0)
        self.device, self.vocab = device, vocab
        self.successors = torch.randint(0, vocab, (vocab, SUCCESSORS), generator=self.generator, device=device)
        self.chances = torch.softmax(torch.arange(SUCCESSORS, device=device) / -2.0, dim=0)

    def draw(self, sequences: int, length: int) -> torch.Tensor:
        """The next ones, int64 [sequences, length], on a GPU one launch for each of a sequence's tokens."""
        chosen = torch.multinomial(self.chances, sequences * length, True, generator=self.generator).view(length, sequences)
        tokens = [torch.randint(0, self.vocab, (sequences,), generator=self.generator, device=self.device)]
        for one in chosen[1:]:
            tokens.append(self.successors[tokens[-1], one])
        return torch.stack(tokens, dim=1)

    @property
    def entropy(self) -> float:
        """The least mean loss of a token behind the first."""
        return -(self.chances * self.chances.log()).sum().item()


def train(implementation: str, seed: int, steps: int, tiny: bool, device: str) -> dict[str, Any]:
    """One run."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(**(TINY if tiny else CONFIG))
    config._experts_implementation = implementation
    torch.manual_seed(seed)
    model = Qwen3MoeForCausalLM(config).to(device, torch.bfloat16)
    model.set_experts_implementation(implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=device == "cuda")
    chain, losses, times = Chain(config.vocab_size, device), list[torch.Tensor](), list[float]()
    sequences, length = SHAPES[tiny]
    data = chain.draw(steps * sequences, length).split(sequences)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step, tokens in enumerate(data):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20)
        out = model(tokens, labels=tokens)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()).detach())
        if step + 1 == min(WARM_UP, steps - 1) or step + 1 == steps:
            losses[-1].item()  # the device is done
            times.append(time.perf_counter())
    values = [one.item() for one in losses]
    return {
        "implementation": implementation,
        "seed": seed,
        "shape": SHAPES[tiny],
        "gpu": torch.cuda.get_device_name() if device == "cuda" else device,
        "steps_per_s": (steps - min(WARM_UP, steps - 1)) / (times[1] - times[0]),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0,
        "entropy": chain.entropy,
        "last": statistics.mean(values[-LAST:]),
        "losses": [round(one, 5) for one in values],
    }


def runs(steps: int, seeds: int, tiny: bool, device: str) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        for implementation in IMPLEMENTATIONS:
            yield train(implementation, seed, steps, tiny, device)
            gc.collect()


def summary(record: dict[str, Any]) -> str:
    rate, peak = f"{record['steps_per_s']:.1f} steps/s", f"{record['peak_gib']:.2f} GiB"
    every = " ".join(f"{one:.3f}" for one in record["losses"][:: max(1, len(record["losses"]) // 10)])
    return f"{record['implementation']} seed {record['seed']}: {rate}, {peak}, loss {every}, at last {record['last']:.4f}"


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    yield "| Experts | Seed | Loss of the last 20 steps | Steps/s | Peak GiB |"
    yield "|---|---|---|---|---|"
    for one in records:
        yield f"| `{one['implementation']}` | {one['seed']} | {one['last']:.4f} | {one['steps_per_s']:.1f} | {one['peak_gib']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--steps", type=at_least(2), default=300)
    parser.add_argument("--seeds", type=at_least(1), default=2)
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU, to try this script")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "table":
        print("\n".join(table(json.loads(given.file.read_text())["records"])))
        return
    save_each(given.out, "transformers_training", runs(given.steps, given.seeds, given.tiny, "cpu" if given.tiny else "cuda"), summary)


if __name__ == "__main__":
    main()
