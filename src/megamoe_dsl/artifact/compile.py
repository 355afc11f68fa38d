"""From a configuration to an artifact: PTX and cubin, with no GPU needed.

The configuration names the architecture; one process may compile for several.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import Sm100Config
from ..problem import Problem, ProblemError
from .artifact import Artifact, CompileError

if TYPE_CHECKING:
    from ..kernels.registry import AnyConfig

ROLE_FOLDERS = tuple(Path(__file__).parents[1] / name for name in ("kernels", "blocks"))
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, in the DSL's diagnostics


@contextmanager
def naming_the_compiler() -> Iterator[None]:
    """Turns an error that the DSL reports into `CompileError`: its own words, without colours; the DSL's error is the cause."""
    from cutlass.base_dsl.common import DSLBaseError

    try:
        yield
    except DSLBaseError as error:
        raise CompileError(f"the DSL: {COLOURS.sub('', str(error))}") from error


def compile_kernel(config: AnyConfig, *, line_info: bool = False) -> Artifact:
    """Compiles the kernel of a configuration.  Takes a second or two; raises `CompileError`.

    `line_info` makes PTX and cubin name lines of the role files.  It changes no instruction, only their order in places.
    """
    # The DSL asks for an architecture when it is imported; what counts is the one given to each compilation.
    os.environ.setdefault("CUTE_DSL_ARCH", config.arch)
    import cuda.bindings.driver as driver
    import cutlass.cute as cute

    from ..device.location import attribute_lines
    from ..kernels.registry import entry

    launch, arguments = entry(config)
    with tempfile.TemporaryDirectory() as directory:
        options = f"--gpu-arch={config.arch} --keep-ptx --keep-cubin --dump-dir={directory}"
        options += " --generate-line-info" if line_info else ""
        start = time.perf_counter()
        with naming_the_compiler(), attribute_lines(*ROLE_FOLDERS) if line_info else nullcontext():
            compiled = cute.compile(launch, config, arguments, driver.CUstream(0), options=options)
        seconds = time.perf_counter() - start
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
    if not ptx or not cubin:
        raise CompileError("the DSL kept no PTX or cubin")
    return Artifact(config, config.arch, ptx, cubin, seconds, line_info)


def compile(problem: Problem, arch: str = "sm_100a", *, num_tokens: int | None = None, **overrides: Any) -> Artifact:
    """The kernel for a problem, with line info, so that `.histogram(role)` and `.measures` answer.

    arch        "sm_100a" (problem.recipe fp8xfp4) or "sm_90a" (fp8xfp8)
    num_tokens  tokens on every rank that the configuration is chosen for; by default the capacity, max_tokens_per_rank
    overrides   fields of the configuration (`Sm100Config`, `Sm90Config`)

    Raises `ProblemError` for an unknown arch or another arch's recipe, `ConfigError` and `CompileError`.
    """
    kinds: dict[str, tuple[type[Any], str]] = {"sm_100a": (Sm100Config, "fp8xfp4"), "sm_90a": (Sm90Config, "fp8xfp8")}
    if arch not in kinds:
        raise ProblemError("arch", arch, "one of " + ", ".join(kinds))
    kind, recipe = kinds[arch]
    if problem.recipe != recipe:
        raise ProblemError("recipe", problem.recipe, f"{recipe} for {arch}")
    config = kind.choose(problem, problem.max_tokens_per_rank if num_tokens is None else num_tokens, **overrides)
    return compile_kernel(config, line_info=True)
