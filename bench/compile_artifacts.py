"""Compiles SM90 kernels into a folder, for machines that have GPUs and no DSL.  No GPU is needed here.

    python bench/compile_artifacts.py FOLDER --preset flash,pro --tokens 8,64,512 --ranks 8
    python bench/compile_artifacts.py FOLDER --preset flash --tokens 512 --ranks 8 --set block_m=32,128 --set num_stages=0,4

Without --set the chosen configurations are compiled; `megamoe tune --compile-only` compiles the candidates around them.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path

from megamoe_dsl.artifact.cache import require_writable
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.artifact.store import ArtifactStore
from megamoe_dsl.bench.options import add_options, at_least, naming_options, read_options
from megamoe_dsl.bench.point import Point
from megamoe_dsl.bench.point_options import CompileOptions
from megamoe_dsl.bench.points import points_of
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.mega_moe.sm90.config import Sm90Config
from megamoe_dsl.kernels.moe_stages.family import stage_configs
from megamoe_dsl.problem import ProblemError

SETTABLE = tuple(one.name for one in fields(Sm90Config) if one.name != "problem")


def read_setting(text: str) -> tuple[str, list[int]]:
    """FIELD=V[,V...].  Raises ValueError."""
    name, equals, values = text.partition("=")
    if name not in SETTABLE or not equals or not all(value.isdecimal() for value in values.split(",")):
        raise ValueError(f"{text!r}: must be FIELD=NUMBER[,NUMBER...] with a field among {', '.join(SETTABLE)}")
    return name, [int(value) for value in values.split(",")]


def variants(point: Point, settings: dict[str, list[int]]) -> list[Sm90Config]:
    """Every valid combination of the settings; the chosen configuration without any."""
    chosen = Sm90Config.choose(point.problem, point.tokens)
    found = []
    for values in itertools.product(*settings.values()):
        given = {name: type(getattr(chosen, name))(value) for name, value in zip(settings, values, strict=True)}
        try:
            found.append(Sm90Config.choose(point.problem, point.tokens, **given))
        except ConfigError as error:
            print(f"{point.name}: left out: {error}")
    return list(dict.fromkeys(found))


def build(folder: Path, config: Sm90Config) -> str:
    """Compiles one kernel unless it is there; a line about it."""
    store = ArtifactStore(folder)
    if store.path(config).exists():
        return f"{store.path(config).name}: there already"
    artifact = compile_kernel(config)
    use = artifact.resources
    return f"{store.save(artifact).name}: {use.registers} registers, {use.stack_bytes} bytes of stack, {artifact.seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles SM90 kernels into a folder.")
    parser.add_argument("folder", type=Path)
    add_options(parser.add_argument, CompileOptions)
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes that compile")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=V[,V...]", help="values of a configuration field")
    given = parser.parse_args()
    options = read_options(CompileOptions, given)
    try:
        settings = dict(read_setting(one) for one in given.set)
    except ValueError as error:
        parser.error(f"--set {error}")
    try:
        with naming_options(CompileOptions):
            points = points_of(options)
            require_writable("folder", given.folder)
    except ProblemError as error:
        parser.error(str(error))
    configs: list[Sm90Config] = [config for point in points for config in variants(point, settings)]
    if options.unfused:
        configs += dict.fromkeys(stage for config in configs for stage in stage_configs(config))
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        for line in pool.map(build, itertools.repeat(given.folder), configs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
