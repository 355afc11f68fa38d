"""Digests of what the host plans without a compiler: every configuration that a point gets, and all that follows from one.

A line of plan_digests.txt has a name and a digest for each of its parts, so that a difference says which part it is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ptx_digests

from megamoe_dsl import Target, choose
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.expert_layer import ExpertLayer, chosen_experts, workspace
from megamoe_dsl.kernels.kernel import KernelConfig
from megamoe_dsl.kernels.registry import KERNELS, find_kernel, kernel_of
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.presets.shapes import PROJECTIONS
from megamoe_dsl.problem import Problem, ProblemError

FILE = Path(__file__).parent / "plan_digests.txt"
TOKENS = (1, 17, 64, 500, 4096)
ROWS = (1, 300, 65536)
SHAPES = ("flash", "glm-4.5-air", "gpt-oss-20b")
MATRICES = ("deepseek-v3/qkv_a", "deepseek-v3/kv_b", "kimi-k2/shared_down", "qwen3-30b-a3b/fc1", "gpt-oss-20b/fc2")
LAYERS = {
    "fp8": ptx_digests.EXPERT_LAYER,
    "bf16": ptx_digests.BF16_LAYER,
    "gpt-oss": ptx_digests.GPT_OSS_LAYER,
    **{recipe: replace(ptx_digests.EXPERT_LAYER, recipe=recipe) for recipe in ("fp8xmxfp4", "fp8xfp4", "mxfp8xmxfp8", "nvfp4xnvfp4")},
}


class Addresses(dict[str, int]):
    """Of whatever is asked for, each far from the others."""

    def __missing__(self, name: str) -> int:
        self[name] = (len(self) + 1) << 36
        return self[name]


def parts_of(config: KernelConfig) -> dict[str, Any]:
    """What follows from a configuration, by what it is for."""
    kernel, arguments = kernel_of(config), kernel_of(config).arguments(config)
    given = enumerate(zip(arguments.names, arguments.widths, strict=True), 1)
    values = {name: i << 36 if width == 8 else i << 8 for i, (name, width) in given}
    addresses = Addresses()
    maps = [one.tensor_map for one in config.maps(SimpleNamespace(**values))]
    return {
        "config": (kernel.name, config),
        "launch": (kernel.label(config), kernel.code_of(config), kernel.facts(config), config.registers),
        "arguments": (kernel.parameter_spec(config), maps, config.tensor_maps(addresses["sym"], addresses)),
        "memory": (
            [getattr(config, name, None) for name in ("symmetric", "results")],
            config.smem and config.smem.region,
            config.smem.barriers if config.smem else (),
            config.tmem,
            kernel.dynamic_smem(config),
        ),
    }


def tried(make: Callable[..., Any], *arguments: Any) -> Any:
    """What it makes, or the words of its refusal."""
    try:
        return make(*arguments)
    except (ConfigError, ProblemError) as error:
        return f"{type(error).__name__}: {error}"


def layers() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Choices for the presets' fused layers, and for the launches of other families that take such a problem."""
    for kernel in KERNELS:
        if kernel.problem is not Problem:
            continue
        for arch, recipes in kernel.recipes.items():
            target = Target.typical(arch)
            for recipe in recipes:
                few = kernel.name != "mega_moe"  # what it chooses follows from the fused layer's choice
                shapes = [PRESETS[name] for name in SHAPES[: 1 if few else None]]
                problems = [one.problem(8192, recipe=recipe, activation=one.activation, biases=one.biases) for one in shapes]
                found = [tried(kernel.choose, p, target, t) for p in problems for t in TOKENS[few * 3 :]]
                yield f"choose-{kernel.name}-{arch}-{recipe}", {"config": found}


def gemms() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for arch in find_kernel("mega_moe").configs:
        target = Target.typical(arch)
        for recipe in find_kernel("gemm").recipes[arch]:
            problems = [replace(one.problem, recipe=recipe) for one in map(PROJECTIONS.__getitem__, MATRICES)]
            yield f"choose-gemm-{arch}-{recipe}", {"config": [tried(choose, p, target, r) for p in problems for r in ROWS]}
        for name, layer in LAYERS.items():
            yield f"layer-{name}-{arch}", layer_on(layer, target)


def layer_on(layer: ExpertLayer, target: Target) -> Mapping[str, Any]:
    backward = [one for output in ("bf16", "f32") if isinstance(one := tried(layer.backward, output), tuple)]
    return {
        "kernels": [tried(layer.kernels, target, t) for t in TOKENS],
        "backward": [tried(choose, p, target, 4096) for problems in backward for p in problems],
        "memory": [(workspace(layer, t), chosen_experts(t, layer.topk)) for t in TOKENS],
    }


VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "f32", "packed", "aligned", "gate_first", "fp8xfp8", "fp8xfp4", "bf16xbf16", 0.5, 1e16, float("nan"), -1),
    *(0, 1, 2, 3, 4, 5, 8, 9, 16, 24, 31, 32, 33, 64, 96, 128, 129, 192, 256, 257, 512, 1024, 1056, 4096, 16384, 16416, 1 << 18),
    *((1 << 18) + 32, 1 << 20, (1 << 20) + 128, 1 << 27, 1 << 40),
)  # fmt: skip


def refusals() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Which values a field of a configuration or a problem takes, and the words for those that it does not."""
    bases: dict[str, list[Any]] = {}
    for config in (make() for make in ptx_digests.CASES.values()):
        for one, most in ((config, 1), (config.problem, 2)):
            known = bases.setdefault(type(one).__name__, [])
            if one not in known and len(known) < most:
                known.append(one)
    bases["ExpertLayer"] = list(LAYERS.values())[:2]
    for name, several in bases.items():
        kept = [one.name for one in fields(several[0]) if one.init and not is_dataclass(getattr(several[0], one.name))]
        yield f"refusals-{name}", {one: [answer(base, one, value) for base in several for value in VALUES] for one in kept}


def answer(base: Any, field: str, value: Any) -> str:
    found = tried(partial(replace, base, **{field: value}))
    return found if isinstance(found, str) else repr(getattr(found, field))


def present() -> dict[str, dict[str, str]]:
    """Digests of today's sources, by name and part."""
    found = {name: parts_of(make()) for name, make in ptx_digests.CASES.items()}
    for several in (layers(), gemms(), refusals()):
        found.update(several)
    return {name: {part: digest(value) for part, value in parts.items()} for name, parts in found.items()}


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def read() -> dict[str, dict[str, str]]:
    lines = (line.split() for line in FILE.read_text().splitlines())
    return {name: dict(one.split("=") for one in parts) for name, *parts in lines}


def write(digests: Mapping[str, Mapping[str, str]]) -> None:
    FILE.write_text("".join(f"{name} {' '.join(map('='.join, parts.items()))}\n" for name, parts in digests.items()))


if __name__ == "__main__":
    write(present())
