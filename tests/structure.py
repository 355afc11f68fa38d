"""The import graph of the package: what folders may import, and what the sources do import, inside functions and for types too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "megamoe_dsl"
NAME = PACKAGE.name
SHAPE = {"activation", "arch", "config_error", "hardware", "layouts", "problem", "recipe", "shared_experts", "target"}
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in ("config_error", "interrupts", "json_file", "lazy", "activation", "arch", "recipe", "sass")},
    "tuned": {"config_error", "json_file"},
    "layouts": {"lazy"},
    "hardware": {"layouts", "lazy"},
    "schedule": {"layouts", "lazy"},
    "device": {"hardware", "layouts", "lazy"},
    "problem": {"activation", "config_error", "recipe"},
    "shared_experts": {"config_error", "problem"},
    "cuda_device": {"problem"},
    "target": {"arch", "config_error", "problem"},
    "blocks": {*SHAPE, "device", "lazy", "schedule", "tuned"},
    "sim": {"device", "hardware", "interrupts"},
    "quant": {"arch", "hardware", "layouts", "lazy", "problem", "recipe"},
    "reference": {"activation", "problem", "quant", "recipe", "shared_experts"},
    "cases": {"config_error", "cuda_device", "problem", "quant", "recipe", "reference"},
    "kernels": {*SHAPE, "blocks", "device", "lazy", "sass", "schedule", "tuned"},
    "testing": {*SHAPE, "blocks", "kernels", "sim"},
    "artifact": {*SHAPE, "device", "blocks", "interrupts", "json_file", "kernels", "sass"},
    "presets": {*SHAPE, "artifact", "blocks", "json_file", "kernels"},
    "pictures": {*SHAPE, "blocks", "json_file", "kernels", "schedule"},
    "options": {"config_error", "kernels", "presets", "problem", "recipe"},
    "inspect": {*SHAPE, "artifact", "blocks", "json_file", "kernels", "presets", "sass"},
    "checkpoints": {"cuda_device", "hardware", "json_file", "layouts", "problem", "quant", "recipe"},
    "runtime": {
        *SHAPE,
        "artifact",
        "cases",
        "cuda_device",
        "blocks",
        "json_file",
        "kernels",
        "quant",
        "reference",
        "sim",
        "tuned",
    },
    "compat": {
        "activation",
        "cuda_device",
        "arch",
        "artifact",
        "blocks",
        "kernels",
        "lazy",
        "presets",
        "problem",
        "quant",
        "recipe",
        "reference",
        "runtime",
        "target",
        "json_file",
    },
    "kernel_cases": {"blocks", *SHAPE, "cases", "kernels", "quant", "reference", "runtime"},
    "bench": {
        *SHAPE,
        "artifact",
        "blocks",
        "cases",
        "inspect",
        "json_file",
        "kernel_cases",
        "kernels",
        "options",
        "presets",
        "quant",
        "reference",
        "runtime",
        "tuned",
    },
}
"""What each folder, and each file beside the folders, may import of the others.  The command imports them all, and nobody the command."""


def module_of(path: Path) -> str:
    """`kernels.registry` for a file, the folder's name for its `__init__.py`, an empty name for the package's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package."""
    return {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def named(node: ast.ImportFrom, module: str, is_package: bool) -> Iterator[str]:
    """Modules of the package that an import names."""
    if node.level:
        parts = module.split(".") if module else []
        base = parts if is_package else parts[:-1]
        origin = ".".join([*base[: len(base) - (node.level - 1)], *([node.module] if node.module else [])])
    elif node.module == NAME or (node.module or "").startswith(f"{NAME}."):
        origin = (node.module or "").removeprefix(NAME).removeprefix(".")
    else:
        return
    for alias in node.names:
        inner = f"{origin}.{alias.name}".removeprefix(".")
        yield inner if inner in modules() else origin


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module to the modules that it imports, anywhere in its file."""
    found = {}
    for module, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        found[module] = frozenset(one for node in froms for one in named(node, module, path.name == "__init__.py")) - {module}
    return found


def family(module: str) -> str:
    """The folder of `kernels/` in which a module lies; empty for others."""
    parts = module.split(".")
    folder = len(parts) > 1 and parts[0] == "kernels" and (PACKAGE / "kernels" / parts[1]).is_dir()
    return parts[1] if folder else ""


def family_imports() -> set[str]:
    """`importer -> imported` for modules of two folders of `kernels/`."""
    return {
        f"{module} -> {other}"
        for module, others in imports().items()
        for other in others
        if family(module) and family(other) and family(module) != family(other)
    }


def circle(graph: dict[str, frozenset[str]]) -> list[str]:
    """Modules that import one another in a ring, the first again at the end; empty without one."""
    done: set[str] = set()

    def walk(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph.get(module, ())):
            if ring := walk(other, [*trail, module]):
                return ring
        done.add(module)
        return []

    return next((ring for module in graph if (ring := walk(module, []))), [])
