"""Makes the tables of reference pages from the code: python bench/reference_pages.py

A page of docs/reference has a line `<!-- NAME -->` before each table that is made, and `<!-- end -->` after it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any

import torch

import megamoe_dsl
from megamoe_dsl.kernels.gemm.family import GatherGemmKernel, GemmKernel
from megamoe_dsl.kernels.kernel import Kernel
from megamoe_dsl.kernels.moe.family import MegaMoeKernel
from megamoe_dsl.kernels.moe.halves.family import EP_KERNELS
from megamoe_dsl.kernels.moe.unfused.family import STAGES
from megamoe_dsl.kernels.registry import KERNELS
from megamoe_dsl.presets import PRESETS, PROJECTIONS
from megamoe_dsl.quant.formats import e2m1_scale_byte, e2m1_values, e4m3_scale_byte
from megamoe_dsl.recipe import RECIPES, Format
from result_archive import read_archive

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "reference"
PLACE = re.compile(r"(?ms)^(<!-- (\w+) -->\n).*?^(<!-- end -->)$")
FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*)(?:\([\w, ]*\))? {2,}(\S.*)")
SUPPORT: tuple[tuple[str, Sequence[Kernel], Mapping[str, str]], ...] = (
    ("`MegaMoE`", (MegaMoeKernel(),), {"mega_moe_sm90-time": "", "experts": "fused"}),
    ("`MegaMoE(fused=False)`", STAGES, {"fusion_gain": ""}),
    ("`EpMoE`", EP_KERNELS, {"ep_moe": ""}),
    ("`moe`: the GEMM that gathers", (GatherGemmKernel(),), {"experts": ""}),
    ("`gemm`, `grouped_gemm`", (GemmKernel(),), {"gemm": ""}),
)
"""What a caller names, its kernels, and the records that time them, by kind; where they time others, too, the name of its times."""


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [tuple(headings), *(tuple(map(str, row)) for row in rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def recipe_of(record: Mapping[str, Any]) -> str:
    """Of a record's point: FP8 unless it says otherwise."""
    point = record.get("point", record.get("problem"))
    if isinstance(point, str):
        return [*point.split(":"), "", ""][2] or "fp8xfp8"
    return (point or {}).get("recipe") or "fp8xfp8"


def measured(kinds: Mapping[str, str]) -> dict[str, set[str]]:
    """Recipes that records of these kinds have times of, with their GPUs."""
    found: dict[str, set[str]] = {}
    for name, text in records().items():
        for kind, way in kinds.items():
            if name.startswith(f"{kind}-2"):
                content = json.loads(text)
                for record in content["records"]:
                    if not way or way in record["us"]:
                        found.setdefault(recipe_of(record), set()).add(content["gpu"].split()[1])
    return found


@cache
def records() -> dict[str, bytes]:
    """All of them by name, the archived ones too."""
    folder = ROOT / "bench" / "results"
    plain = {file.stem: file.read_bytes() for file in folder.glob("*.json")}
    return plain | {name: text for archive in folder.glob("*.tar.xz") for name, text in read_archive(archive).items()}


def support() -> str:
    rows = []
    for name, kernels, kinds in SUPPORT:
        times = measured(kinds)
        for arch in ("sm_90a", "sm_100a"):
            for recipe in kernels[0].recipes.get(arch, ()):
                gpus = ", ".join(sorted(times.get(recipe, ()))) if arch == "sm_90a" else ""
                rows.append((name, arch.upper().removesuffix("A").replace("_", ""), f"`{recipe}`", gpus or "not yet"))
    return table(("Entry point", "Architecture", "Recipe", "Times in records"), rows)


def words(one: Format) -> str:
    return one.words.replace("F32", "FP32").replace("for every", "per").replace("one per ", "").replace("scales, ", "scales per ") + (
        ", a factor per matrix" if one.factor else ""
    )


def recipes() -> str:
    rows = ((f"`{one.name}`", words(one.activations), words(one.weights), words(one.hidden)) for one in RECIPES.values())
    return table(("Recipe", "Tokens", "Weights", "Between the linears"), rows)


def elements() -> str:
    """E4M3 by its codes, BF16 by torch, E2M1 by the table that kernels decode with."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    values = e2m1_values()[:8]
    brain = torch.finfo(torch.bfloat16)
    rows = (
        ("E4M3", "1, 4, 3", f"{codes.max():g}", "2^-6", f"2^{math.log2(codes[1]):g}", "`0x7f`, `0xff` are NaN; no infinity"),
        ("E2M1", "1, 2, 1", f"{values.max():g}", "1", f"{values[1]:g}", "values: " + ", ".join(f"{one:g}" for one in values.tolist())),
        ("BF16", "1, 8, 7", f"{brain.max:.3g}", f"2^{math.log2(brain.smallest_normal):g}", "2^-133", "infinities and NaN"),
        ("UE8M0", "0, 8, 0", "2^127", "2^-127", "2^-127", "byte b is 2^(b - 127); `0xff` is NaN"),
        ("UE4M3", "0, 4, 3", f"{codes.max():g}", "2^-6", "2^-9", "E4M3 without a sign"),
    )
    return table(("Element", "Sign, exponent, mantissa bits", "Largest", "Smallest normal", "Smallest", ""), rows)


def scales() -> str:
    """Scale bytes of some largest magnitudes, by the functions that define them."""
    magnitudes = torch.tensor([0.0, 1.0, 6.0, 6.0000005, 448.0, 448.00003, 1000.0])
    rows = ((f"{amax:.8g}", int(e4m3_scale_byte(amax)), int(e2m1_scale_byte(amax))) for amax in magnitudes)
    return table(("amax of the block", "byte for E4M3", "byte for E2M1"), rows)


def presets() -> str:
    rows = (
        (
            f"`{one.name}`",
            one.model,
            one.hidden,
            one.intermediate,
            one.num_experts,
            one.topk,
            one.clamp or "none",
            one.weights.upper(),
            f"`{one.source}`",
        )
        for one in PRESETS.values()
    )
    return table(("Preset", "Model", "Hidden", "Intermediate", "Experts", "Top-k", "Clamp", "Weights", "Source"), rows)


def projections() -> str:
    return table(("Matrix", "N", "K"), ((f"`{name}`", one.n, one.k) for name, one in PROJECTIONS.items()))


def described(kind: type) -> dict[str, str]:
    """Meanings of fields: a comment beside a field or above it, or lines `name   meaning` in the docstring of a class or its bases, with
    indented lines that go on."""
    found = {"problem": "what is computed", "arch_name": "`sm_90a` or `sm_100a`"}
    for base in reversed(kind.__mro__):
        found |= commented(base)
        names: list[str] = []
        for line in cleandoc(base.__dict__.get("__doc__") or "").splitlines():
            if match := FIELD.fullmatch(line):
                names = match[1].split(", ")
                found |= dict.fromkeys(names, one_choice(match[2]))
            elif line.startswith("  ") and names:
                more = one_choice(line.strip())
                found |= {name: found[name] + joint(found[name], more) + more for name in names}
            else:
                names = []
    return found


def commented(kind: type) -> dict[str, str]:
    """Meanings by the comments of a class's own fields."""
    found, above = {}, ""
    for line in inspect.getsource(kind).splitlines() if dataclasses.is_dataclass(kind) else ():
        if comment := re.fullmatch(r" {4}# (.*)", line):
            more = one_choice(comment[1].strip())
            above += joint(above, more) + more if above else more
            continue
        declared = re.fullmatch(r" {4}(\w+): (?!ClassVar).*?(?:  # type: ignore\S*)?(?:  # (.*))?", line)
        if declared and (meaning := declared[2] or above):
            found[declared[1]] = meaning
        above = ""
    return found


def one_choice(text: str) -> str:
    """`NAME   meaning`, a value of a field, as text."""
    choice = FIELD.fullmatch(text)
    return f"`{choice[1]}`: {choice[2]}" if choice else text


def joint(before: str, after: str) -> str:
    return "; " if after.startswith("`") and not before.endswith(":") else " "


def default(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        return f"`{one.default!r}`"
    return "" if one.default_factory is dataclasses.MISSING else f"`{one.default_factory()!r}`"


def kinds() -> list[tuple[type, list[str]]]:
    """Classes of problems and configurations, with the kernels that have them."""
    found: dict[type, list[str]] = {}
    for kernel in KERNELS:
        for kind in (kernel.problem, *kernel.configs.values()):
            names = found.setdefault(kind, [])
            names += [] if kernel.name in names else [kernel.name]
    return list(found.items())


def fields() -> str:
    parts = []
    for kind, names in kinds():
        texts = described(kind)
        given = [one for one in dataclasses.fields(kind) if one.init]
        rows = ((f"`{one.name}`", default(one), texts.get(one.name, "").replace("|", "\\|")) for one in given)
        used = ", ".join(f"`{name}`" for name in names)
        parts.append(f"## {kind.__name__}\n\nOf {used}.\n\n" + table(("Field", "Default", "Meaning"), rows))
    return "\n".join(parts)


def exceptions() -> dict[str, type[Exception]]:
    """Of the package, by name, but for those of its own commands and benchmarks."""
    found = {}
    for module in pkgutil.walk_packages(megamoe_dsl.__path__, "megamoe_dsl."):
        if re.match(r"megamoe_dsl\.(cli|bench|compat|presets\.deepseek|testing|__main__)", module.name):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.name and name[0] != "_":
                found[name] = value
    return found


def errors() -> str:
    rows = []
    for name, one in sorted(exceptions().items()):
        meaning = " ".join(cleandoc(one.__doc__ or "").split("\n\n")[0].split())
        rows.append((f"`{name}`", ", ".join(f"`{base.__name__}`" for base in one.__bases__), meaning))
    return table(("Error", "Is a", "Raised for"), rows)


MADE: dict[str, Callable[[], str]] = {
    one.__name__: one for one in (support, recipes, elements, scales, presets, projections, fields, errors)
}


def made(text: str) -> str:
    """A page with today's tables."""
    return PLACE.sub(lambda found: f"{found[1]}\n{MADE[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(made(page.read_text()))
