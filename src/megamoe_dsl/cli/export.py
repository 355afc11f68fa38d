"""`megamoe export`: kernels for processes without the DSL: one as a shared library, or all of a layer as a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..kernels.kernel import KernelConfig
from ..kernels.moe.halves.family import EP_KERNELS
from ..options.option import leave_out, naming
from ..problem import Problem, ProblemError
from ..target import Target
from .options import DEFAULT_KERNEL, TILE, CompiledOptions, either, takes
from .tables import config_table, facts, problem_table

KernelsOf = Callable[[Problem, Target], list[KernelConfig]]


@takes(CompiledOptions)
def export(
    given: CompiledOptions,
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if need be.", file_okay=False)],
    name: Annotated[str | None, typer.Option(help="Name of the files; by default the kernel, architecture, shape and tile.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All kernels of the layer instead, for any number of tokens: a folder that it loads them from.")
    ] = False,
) -> None:
    """Compile ahead of time: an object and a shared library that any process loads through TVM FFI, with a manifest that says how.  With
    --all a folder of every kernel that the Python layer loads with up to --max-tokens tokens on a rank, 8192 by default."""
    console = Console()
    if every:
        if name is not None:
            raise ProblemError("--name", name, "left out with --all")
        export_all(given, folder, console)
        return
    config = given.chosen

    from ..artifact.export import export_kernel

    with Console(stderr=True).status("compiling and linking"):
        files = export_kernel(config, folder, name)
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    console.print(facts("Files", [(one.name, f"{one.stat().st_size:,} bytes") for one in files.files]))
    console.print(f'load with: ExportedKernel("{files.manifest}")  (megamoe_dsl.runtime.exported_kernel)', soft_wrap=True, markup=False)


def export_all(given: CompiledOptions, folder: Path, console: Console) -> None:
    """Compiles all kernels of a layer into a folder.  Raises `ProblemError` for an option that chooses one of them."""
    from ..artifact.store import ArtifactStore, dsl_version, kernel_name
    from ..runtime.preparation import compile_ahead

    problem, kernels = kernels_of(given)
    store = ArtifactStore(folder)
    compiled = compile_ahead(kernels, store)
    sizes = [(kernel_name(one), f"{store.path(one).stat().st_size:,} bytes") for one in kernels]
    console.print(problem_table(problem), facts(f"Kernels, {compiled} of them new, by DSL {dsl_version()}", sizes), sep="\n")
    used = f"MEGAMOE_CACHE_DIR={folder}, or store=ArtifactStore({str(folder)!r}) of the layer"
    console.print(f"use with: {used}", soft_wrap=True, markup=False)


def kernels_of(given: CompiledOptions) -> tuple[Problem, list[KernelConfig]]:
    """The layer that the options name, with all its kernels.  Raises `ProblemError`."""
    from ..presets.compiled import MAX_TOKENS
    from ..runtime.preparation import grid_target, halves_kernels, layer_kernels

    of_halves = dict.fromkeys([one.name for one in EP_KERNELS], halves_kernels)
    of_layers: dict[str, KernelsOf] = {DEFAULT_KERNEL: layer_kernels, **of_halves}
    if given.kernel not in of_layers or not given.of_layer:
        raise ProblemError("--kernel", given.kernel, f"{either(list(of_layers))} with --all")
    leave_out(given, TILE, "--all")
    with naming({"max_tokens_per_rank": "--max-tokens"}):
        problem = given.problem(MAX_TOKENS if given.max_tokens is None else given.max_tokens)
    return problem, of_layers[given.kernel](problem, grid_target(Target.typical(given.architecture, given.sms)))
