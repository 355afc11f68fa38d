"""`megamoe export`: a kernel as a shared library for processes without the DSL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .config_options import CompiledOptions
from .options import takes
from .tables import config_table, facts, problem_table


@takes(CompiledOptions)
def export(
    given: CompiledOptions,
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if need be.", file_okay=False)],
    name: Annotated[str | None, typer.Option(help="Of the files; mega_moe with architecture, shape and tile by default.")] = None,
) -> None:
    """Compile ahead of time: an object and a shared library that any process loads through TVM FFI, with a manifest that says how."""
    console = Console()
    config = given.chosen

    from ..artifact.export import export_kernel

    with Console(stderr=True).status("compiling and linking"):
        files = export_kernel(config, folder, name)
    console.print(problem_table(config.problem), config_table(config), sep="\n")
    console.print(facts("Files", [(one.name, f"{one.stat().st_size:,} bytes") for one in files.files]))
    console.print(f'load with: ExportedKernel("{files.manifest}")  (megamoe_dsl.runtime.exported_kernel)', soft_wrap=True, markup=False)
