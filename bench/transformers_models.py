"""Times models of transformers, with random weights, by what computes their experts: this project, or transformers itself.

    python bench/transformers_models.py prepare FOLDER [--models ...]      where the DSL is: compiles the kernels that the models call
    python bench/transformers_models.py run FOLDER [--models ...] [--layers N] [--sizes ...] [--agreement] [--turns N] [--others ...]
        [--deep-gemm SITE] [--sonic SITE] [--out FOLDER]      where a GPU and transformers are
    python bench/transformers_models.py table FILE ...      anywhere: the tables of docs/lab/transformers.md

For each model: milliseconds to the first token of a prompt, tokens a second while decoding (as transformers runs it, and as one CUDA graph
a step), and a profile of one such run with our experts; peak memory; with --agreement, or without --sizes, how far logits and greedy tokens
are from those of "eager", and how many tokens have eager's experts.  Implementations take turns, in random order; one of them, "nothing",
returns its input: what it takes is the time of all else.  With the time in which a GPU reads the weights of the experts, or multiplies by
them, it is the least that a model can take.
SITE has unpacked wheels in the place of kernels that transformers would download: sgl-deep-gemm, and sonic-moe with quack and einops.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baselines.site import import_from
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.blocks.gemm.problem import BF16, F32
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.runtime.preparation import compile_ahead
from megamoe_dsl.target import Target, local_target
from records import save_each
from script_options import at_least
from transformers_shapes import MODELS, Model
from transformers_tables import KINDS, NOTHING, OTHERS, OURS, size_of, tables

EAGER = "eager"
TURNS, STEPS = 5, 8
GREEDY = 24
"""Tokens that each implementation generates."""
BATCHED_ROWS = 256
"""More rows than these make `batched_mm` copy more weights than a GPU has memory for."""
Routing = tuple[torch.Tensor, torch.Tensor]
"""Experts of tokens, and their weights."""


def compile_models(models: list[Model], folder: Path, target: Target) -> int:
    """Compiles what the folder lacks; how many kernels."""
    layers = [replace(model.layer, weights=weights) for model in models for weights in (F32, BF16)]  # routers give either
    counts = [sorted(model.token_counts) for model in models for _ in (F32, BF16)]
    every = [config for layer, some in zip(layers, counts, strict=True) for tokens in some for config in layer.kernels(target, tokens)]
    return compile_ahead(every, ArtifactStore(folder))


@dataclass
class Timed:
    """A model on its device, timed by implementation."""

    model: Model
    others: Sequence[str] = OTHERS
    turns: int = TURNS
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        self.module = self.model.make()
        self.names = [OURS]
        for name in self.others:
            try:
                self.use(name)
                self.first_token(16)
            except Exception as error:  # whatever another implementation raises is a reason to leave it out
                self.refused[name] = f"{type(error).__name__}: {error}"[:200]
            else:
                self.names.append(name)
        ALL_EXPERTS_FUNCTIONS.register(NOTHING, lambda experts, hidden_states, *_: hidden_states)
        self.names.append(NOTHING)

    def use(self, name: str) -> None:
        self.module.set_experts_implementation(name)

    def wait(self) -> None:
        if self.model.device == "cuda":
            torch.cuda.synchronize()

    def tokens(self, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(shape))
        return torch.randint(0, self.model.config["vocab_size"], shape, generator=generator).to(self.model.device)

    def first_token(self, length: int) -> float:
        """Milliseconds from a prompt to its last token's logits."""
        prompt = self.tokens(1, length)
        self.wait()
        begun = time.perf_counter()
        self.module(prompt, use_cache=True, logits_to_keep=1)
        self.wait()
        return 1e3 * (time.perf_counter() - begun)

    def step(self, batch: int) -> Callable[[], object]:
        """A decoding step as `generate` makes it, behind a cache of the model's `cached` tokens."""
        cache, tokens = self.filled(batch, None), self.tokens(batch, 1)
        run = partial(self.module, tokens, past_key_values=cache, use_cache=True)
        run()
        self.wait()
        return run

    def decoding(self, batch: int) -> float:
        """Milliseconds of such a step."""
        return self.each(self.step(batch))

    def each(self, run: Callable[[], object]) -> float:
        """Milliseconds, in the mean of `STEPS` runs."""
        begun = time.perf_counter()
        for _ in range(STEPS):
            run()
        self.wait()
        return 1e3 * (time.perf_counter() - begun) / STEPS

    def filled(self, batch: int, cache: Any) -> Any:
        """A cache, or else a new one, with `cached` tokens of each sequence; always by the same implementation."""
        implementation = self.module.config._experts_implementation
        self.use(OURS)
        found = self.module(self.tokens(batch, self.model.cached), past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
        self.use(implementation)
        return found

    def graph(self, batch: int, cache: Any) -> Callable[[], None]:
        """A decoding step behind a static cache, as a CUDA graph."""
        step, place = self.tokens(batch, 1), torch.full((batch, 1), self.model.cached, device=self.model.device)
        mask = self.mask(batch)

        def run() -> None:
            self.module(step, past_key_values=cache, position_ids=place, attention_mask=mask, use_cache=True)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()

        def replay(_: object = run) -> None:  # which keeps what the graph reads
            graph.replay()

        return replay

    def static_cache(self, batch: int) -> Any:
        """Room for twice as many tokens as are cached."""
        from transformers import StaticCache

        return self.filled(batch, StaticCache(config=self.module.config, max_cache_len=2 * self.model.cached))

    def mask(self, batch: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """All of a static cache, for each kind of attention that the model has: a sliding one keeps a window."""
        config = self.module.config
        kinds = dict.fromkeys(getattr(config, "layer_types", None) or ["full_attention"])
        room = 2 * self.model.cached
        kept = {"sliding_attention": min(getattr(config, "sliding_window", None) or room, room)}
        masks = {kind: torch.ones(batch, 1, 1, kept.get(kind, room), dtype=torch.bool, device=self.model.device) for kind in kinds}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def replaying(self, replay: Callable[[], None], cache: Any) -> float:
        """Milliseconds of a replay, each of which fills a place of the cache."""
        for layer in cache.layers:
            layer.cumulative_length.fill_(self.model.cached)
        replay()
        self.wait()
        return self.each(replay)

    def fits(self, name: str, rows: int) -> bool:
        return name != "batched_mm" or rows * self.model.layer.topk <= BATCHED_ROWS

    def in_turns(self, measure: Callable[[str], float], rows: int, among: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """Median, least and most of all turns of each implementation, or of those `among`; each runs once before, uncounted."""
        names, found = [name for name in self.names if self.fits(name, rows)] if among is None else list(among), dict[str, list[float]]()
        order = random.Random(rows)
        for turn in range(self.turns + 1):
            for name in order.sample(names, len(names)):
                self.use(name)
                took = measure(name)
                if turn:
                    found.setdefault(name, []).append(took)
        return {name: {"median": statistics.median(one), "low": min(one), "high": max(one)} for name, one in found.items()}

    def profiled(self, ms: dict[str, dict[str, float]], make: Callable[[], Callable[[], object]]) -> dict[str, Any]:
        """Times, and on a GPU the milliseconds of `KINDS` in a run with our experts: what `make` returns runs once under a profiler."""
        if self.model.device != "cuda" or OURS not in ms:
            return {"ms": ms}
        self.use(OURS)
        run = make()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            run()
            self.wait()
        on_gpu = [one for one in found.events() if one.device_type == torch.autograd.DeviceType.CUDA]
        return {"ms": ms, "gpu_ms": by_kind((one.name, one.time_range.elapsed_us() / 1e3) for one in on_gpu)}

    def records(self, label: str, sizes: Sequence[int] = (), agreement: bool = False) -> Iterator[dict[str, Any]]:
        """One of each prompt and batch, or those among `sizes`, and one of numbers that are not times, if asked for or without `sizes`."""
        head = {"model": label, "layers": self.model.config["num_hidden_layers"], "refused": self.refused}
        if agreement or not sizes:
            yield {**head, "what": "agreement", **self.agreement()}
        for length in (one for one in self.model.prompts if one in (sizes or self.model.prompts)):
            ms = self.in_turns(lambda name, length=length: self.first_token(length), length)
            yield {
                **head,
                "what": "first token",
                "tokens": length,
                **self.profiled(ms, lambda length=length: partial(self.first_token, length)),
                "peak_gib": self.peaks(length),
            }
        for batch in (one for one in self.model.batches if one in (sizes or self.model.batches)):
            ms = self.in_turns(lambda name, batch=batch: self.decoding(batch), batch)
            yield {**head, "what": "decoding", "batch": batch, **self.profiled(ms, partial(self.step, batch))}
            if self.model.device == "cuda":
                yield {**head, "what": "decoding, CUDA graph", "batch": batch, **self.graphs(batch)}

    def graphs(self, batch: int) -> dict[str, Any]:
        replays, refused, cache = dict[str, Callable[[], None]](), {}, self.static_cache(batch)
        for name in self.names:
            self.use(name)
            try:
                if self.fits(name, batch):
                    replays[name] = self.graph(batch, cache)
            except Exception as error:
                refused[name] = f"{type(error).__name__}: {error}"[:200]
        ms = self.in_turns(lambda name: self.replaying(replays[name], cache), batch, replays)
        return {**self.profiled(ms, lambda: replays[OURS]), "refused": refused}

    def peaks(self, length: int) -> dict[str, float]:
        """GiB allocated at most while a prompt is read, weights included."""
        found = {}
        for name in self.names if self.model.device == "cuda" else ():
            if self.fits(name, length):
                self.use(name)
                gc.collect()
                torch.cuda.reset_peak_memory_stats()
                self.first_token(length)
                found[name] = torch.cuda.max_memory_allocated() / 2**30
        return found

    def agreement(self) -> dict[str, Any]:
        """Of each implementation: the relative distance of logits to eager's, also with eager's routing in every layer; in each layer the
        share of tokens that have eager's experts; how often the largest logit is the same one, and the greedy tokens that are, with
        eager's margin between the first two logits where they part."""
        found = {}
        self.use(EAGER)
        expected, routing = self.routed()
        greedy = self.greedy()

        def distance(logits: torch.Tensor) -> float:
            return ((logits - expected).norm() / expected.norm()).item()

        for name in self.names[:-1]:
            if self.fits(name, self.model.prompts[0]):
                self.use(name)
                (logits, chosen), (forced, _) = self.routed(), self.routed(routing)
                alike = [same_experts(one, eager) for (one, _), (eager, _) in zip(chosen, routing, strict=True)]
                same, own = (logits.argmax(1) == expected.argmax(1)).double().mean().item(), self.greedy()
                parted = (own != greedy).nonzero()
                first = int(parted[0]) if len(parted) else GREEDY
                found[name] = {"distance": distance(logits), "distance_with_its_routing": distance(forced), "same_experts": alike}
                found[name] |= {"same_largest": same, "same_tokens": first, "margin": self.margin(greedy, first)}
        return {"agreement": found}

    def routed(self, given: Sequence[Routing] = ()) -> tuple[torch.Tensor, list[Routing]]:
        """Logits of the first prompt, and the experts and weights of each layer's tokens, in the place of which `given` may be taken."""
        found = list[Routing]()

        def before(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            hidden, *own = arguments
            experts, weights = given[len(found)] if given else own
            found.append((experts, weights))
            return hidden, experts, weights

        with contextlib.ExitStack() as hooks:
            for one in self.module.modules():
                if hasattr(one, "_apply_gate"):
                    hooks.enter_context(one.register_forward_pre_hook(before))
            return self.module(self.tokens(1, self.model.prompts[0]), use_cache=False).logits[0].float(), found

    def greedy(self) -> torch.Tensor:
        prompt = self.tokens(1, 32)
        return self.module.generate(prompt, max_new_tokens=GREEDY, min_new_tokens=GREEDY, do_sample=False, pad_token_id=0)[0, 32:]

    def margin(self, greedy: torch.Tensor, place: int) -> float | None:
        """Between the two largest logits of eager at a place of what it generated; None behind the last."""
        if place == GREEDY:
            return None
        self.use(EAGER)
        before = torch.cat([self.tokens(1, 32)[0], greedy[:place]])[None]
        two = self.module(before, use_cache=False, logits_to_keep=1).logits[0, -1].float().topk(2).values
        return float(two[0] - two[1])


def same_experts(one: torch.Tensor, other: torch.Tensor) -> float:
    """The share of tokens that have the same experts, in any order."""
    return (one.sort(1).values == other.sort(1).values).all(1).double().mean().item()


def by_kind(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sums of times of kernels by `KINDS`."""
    found = dict.fromkeys(KINDS, 0.0)
    for name, ms in kernels:
        found[next(kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))] += ms
    return found


def use_kernels(**sites: Path | None) -> None:
    """Takes kernels of transformers' hub from folders."""
    from transformers.integrations import deepgemm, hub_kernels, sonicmoe

    for name, package, user in (("deep-gemm", "deep_gemm", deepgemm), ("sonic-moe", "sonicmoe", sonicmoe)):
        if site := sites[package]:
            hub_kernels._KERNEL_MODULE_MAPPING[name] = import_from(package, site)
            user.is_kernels_available = lambda: True
    if site := sites["sonicmoe"]:  # quack's tuner would compile and time every tile for every number of rows
        calls = import_from("sonicmoe.functional.forward", site)
        calls.gemm, calls.gemm_gated = (partial(one, tuned=False) for one in (calls.gemm, calls.gemm_gated))


def line_of(record: dict[str, Any]) -> str:
    """A record in a line."""
    if record["what"] == "agreement":
        return f"{record['model']}: {json.dumps(record['agreement'])} refused {json.dumps(record['refused'])}"
    ms = "  ".join(f"{name} {one['median']:.2f}" for name, one in record["ms"].items())
    gpu = "  ".join(f"{kind} {one:.2f}" for kind, one in record.get("gpu_ms", {}).items())
    return f"{record['model']} {record['what']} {size_of(record)}: {ms}  GPU: {gpu} {record.get('refused') or ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run", "table"))
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=["qwen3-30b-a3b"])
    parser.add_argument("--layers", type=at_least(1), help="of each model, of which it has more")
    parser.add_argument("--sizes", type=int, nargs="*", default=(), help="prompts and batches to time, of those of a model")
    parser.add_argument("--agreement", action="store_true", help="compares logits also where --sizes chooses")
    parser.add_argument("--turns", type=at_least(1), default=TURNS)
    parser.add_argument("--others", nargs="*", choices=OTHERS, default=OTHERS)
    parser.add_argument("--deep-gemm", type=Path)
    parser.add_argument("--sonic", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    if given.what == "table":
        print(tables(*(json.loads(one.read_text()) for one in given.folder)))
        return
    if given.what == "prepare":
        models, target = [MODELS[name] for name in given.models], local_target() or Target.typical("sm_90a")
        print(f"{compile_models(models, given.folder[0], target)} kernels")
        return
    os.environ[FOLDER_VARIABLE] = str(given.folder[0])  # where `moe` finds its kernels
    import megamoe_dsl.compat.transformers  # noqa: F401  registers "megamoe"

    use_kernels(deep_gemm=given.deep_gemm, sonicmoe=given.sonic)
    fewer = {} if given.layers is None else {"num_hidden_layers": given.layers}
    models = {name: replace(MODELS[name], config={**MODELS[name].config, **fewer}) for name in given.models}
    with torch.no_grad():
        every = (
            record
            for name, model in models.items()
            for record in Timed(model, given.others, given.turns).records(name, given.sizes, given.agreement)
        )
        save_each(given.out, "transformers", every, line_of)


if __name__ == "__main__":
    main()
