"""Which values fields of configurations have: `python tests/options_audit.py` prints, for each field, those that `choose` gives it
over presets, number formats and numbers of tokens, or else who asks for another.  A field without either is an option that nobody uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from megamoe_dsl import Target
from megamoe_dsl.blocks.gemm.problem import DENSE, GemmProblem
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_layer import ExpertLayer
from megamoe_dsl.kernels.registry import KERNELS, choose
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.recipe import RECIPES

TOKENS = 1, 16, 256, 8192
TARGETS = Target.typical("sm_90a"), Target.typical("sm_90a", 17), Target.typical("sm_100a"), Target.typical("sm_100a", 20)
SAMPLE = "pro", "qwen3-30b-a3b"
MEGAKERNEL = "the README of an expert-parallel megakernel describes both"
SMALL = "small tiles are simulated"
ASKED: Mapping[str, str] = {
    **dict.fromkeys(("token_saving", "token_sorting", "tail_sms", "block_wise", "scatter", "interleaved", "token_blocks"), MEGAKERNEL),
    **dict.fromkeys(("DispatchGemmConfig.block_m", "DispatchGemmConfig.block_n"), SMALL),
    **dict.fromkeys(("GemmCombineConfig.block_m", "GemmCombineConfig.block_n"), SMALL),
    **dict.fromkeys(("gate_up", "trains"), "runtime/ep/layer.py"),
    "slots_per_sorter": "a few slots have several sorters in the simulator",
    "task_tokens": "tuned/nvidia_h200-ep.json",
    "Sm100GemmConfig.group_m": "kernels/moe/halves/gemm_part.py",
    "split_k": "tuned/nvidia_h200-gemm.json",
    "DecodeConfig.num_stages": "packed weights have a deeper ring",
    "most_columns": "kernels/moe/halves/gemm_part.py",
    "transposed": "runtime/ep/training.py",
    "trace": "cli/bench.py",
    "pool_rows": "runtime/layer.py",
    "quantized": "runtime/inputs_stage.py",
    "shared": "runtime/inputs_stage.py",
    "indices": "runtime/experts.py",
    "weights": "runtime/experts.py",
}
"""Who gives a field another value than `choose` does: a file of the package, or a reason, by the field or by class and field."""


def chosen(preset: str, recipe: str, target: Target, tokens: int) -> Iterator[Any]:
    """Configurations that are chosen where no field is given."""
    problem = PRESETS[preset].problem(8192)
    for kernel in (one for one in KERNELS if one.problem is Problem):
        with suppress(ProblemError, ConfigError, KeyError):
            yield kernel.choose(replace(problem, recipe=recipe), target, tokens)
    with suppress(ProblemError, ConfigError):
        layer = ExpertLayer(problem.hidden, problem.intermediate, problem.num_experts, problem.topk, recipe=recipe)
        yield from (*layer.kernels(target, tokens), *layer.configs(target, tokens))
        for one in (*layer.backward(), GemmProblem(problem.hidden, problem.intermediate, DENSE, recipe=recipe)):
            with suppress(ProblemError, ConfigError):
                yield choose(one, target, tokens * problem.topk)


def values() -> dict[str, set[Any]]:
    """Values by `Class.field`, but for problems and parts."""
    seen: dict[str, set[Any]] = defaultdict(set)
    for target in TARGETS:
        for preset, recipe, tokens in ((a, b, c) for a in SAMPLE for b in RECIPES for c in TOKENS):
            for config in chosen(preset, recipe, target, tokens):
                for one in fields(config):
                    if one.name not in ("problem", "fused"):
                        seen[f"{type(config).__name__}.{one.name}"].add(getattr(config, one.name))
    return seen


def asker(name: str) -> str:
    """Who asks for another value of `Class.field`; empty if nobody does."""
    return ASKED.get(name, ASKED.get(name.partition(".")[2], ""))


if __name__ == "__main__":
    for name, some in sorted(values().items()):
        print(
            f"{name:40}", ", ".join(map(str, sorted(some, key=str))) if len(some) > 1 else f"{some.pop()}; {asker(name) or 'NOBODY asks'}"
        )
