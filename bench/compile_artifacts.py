"""Compiles kernels into a folder, for machines that have GPUs and no DSL.  No GPU is needed here; the number formats say which one.

    python bench/compile_artifacts.py FOLDER --preset flash,pro --tokens 8,64,512 --ranks 8
    python bench/compile_artifacts.py FOLDER --preset flash --tokens 512 --ranks 8 --set block_m=32,128 --set num_stages=0,4
    python bench/compile_artifacts.py FOLDER --preset flash --tokens 512 --ranks 8 --recipe fp8xfp4

Without --set the chosen configurations are compiled; `megamoe tune --compile-only` compiles the candidates around them.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from megamoe_dsl.artifact.cache import require_writable
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.host import Host
from megamoe_dsl.bench.point import Point, points_of
from megamoe_dsl.bench.variant import kind_of
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.options.option import option
from megamoe_dsl.options.points import PRESETS, PROBLEM, TOKENS, PointOptions
from megamoe_dsl.problem import ProblemError
from script_options import add_options, at_least, naming_options, read_options


@dataclass(frozen=True)
class CompileOptions(PointOptions):
    """Of this script."""

    DEFAULT_PRESETS = "flash,pro"

    preset: str | None = option(None, PRESETS, PROBLEM, DEFAULT_PRESETS)
    tokens: str = option("1,8,64,512,2048,8192", TOKENS, PROBLEM)
    unfused: bool = option(False, "Also the kernels of the unfused layer's stages.")


def settable(recipe: str) -> tuple[str, ...]:
    """Fields of the configurations that compute in these number formats.  Raises `ProblemError`."""
    return tuple(one.name for one in fields(kind_of(recipe)) if one.name != "problem")


def read_setting(text: str, known: tuple[str, ...]) -> tuple[str, list[int]]:
    """FIELD=V[,V...].  Raises ValueError."""
    name, equals, values = text.partition("=")
    if name not in known or not equals or not all(value.isdecimal() for value in values.split(",")):
        raise ValueError(f"{text!r}: must be FIELD=NUMBER[,NUMBER...] with a field among {', '.join(known)}")
    return name, [int(value) for value in values.split(",")]


def variants(point: Point, settings: dict[str, list[int]], sms: int | None = None) -> list[MegaMoeConfig]:
    """Every valid combination of the settings; the chosen configuration without any.  On a GPU as most people have it, or one of `sms` SMs
    that nobody has measured."""
    target = Host.typical(kind_of(point.recipe).arch).target
    if sms is not None:
        target = replace(target, num_sms=sms, gpu=None)

    def choose(**given: Any) -> MegaMoeConfig:
        config: MegaMoeConfig = find_kernel("mega_moe").choose(point.problem, target, point.tokens, **point.pool, **given)
        return config

    chosen = choose()
    found = []
    for values in itertools.product(*settings.values()):
        given = {name: type(getattr(chosen, name))(value) for name, value in zip(settings, values, strict=True)}
        try:
            found.append(choose(**given))
        except ConfigError as error:
            print(f"{point.name}: left out: {error}")
    return list(dict.fromkeys(found))


def build(folder: Path, config: MegaMoeConfig) -> str:
    """Compiles one kernel unless it is there; a line about it."""
    store = ArtifactStore(folder)
    if store.path(config).exists():
        return f"{store.path(config).name}: there already"
    artifact = compile_kernel(config)
    use = artifact.resources
    return f"{store.save(artifact).name}: {use.registers} registers, {use.stack_bytes} bytes of stack, {artifact.seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles kernels of the fused layer into a folder.")
    parser.add_argument("folder", type=Path)
    add_options(parser.add_argument, CompileOptions)
    parser.add_argument("--sms", type=at_least(2), help="SMs of the GPU, if it is not one as most people have it")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=V[,V...]", help="values of a configuration field")
    given = parser.parse_args()
    options = read_options(CompileOptions, given)
    try:
        with naming_options(CompileOptions):
            known = settable(options.recipe)
        settings = dict(read_setting(one, known) for one in given.set)
    except ProblemError as error:
        parser.error(str(error))
    except ValueError as error:
        parser.error(f"--set {error}")
    try:
        with naming_options(CompileOptions):
            points = points_of(options)
            require_writable("folder", given.folder)
    except ProblemError as error:
        parser.error(str(error))
    configs: list[MegaMoeConfig] = [config for point in points for config in variants(point, settings, given.sms)]
    if options.unfused:
        configs += dict.fromkeys(stage for config in configs for stage in stage_configs(config))
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(build, itertools.repeat(given.folder), configs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
