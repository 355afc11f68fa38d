"""`megamoe export`: a kernel as a shared library for processes without the DSL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

<<<<<<< HEAD
from .errors import capacity_option, one_line_errors
from .shape import (
    DEFAULT_KERNEL,
    ArchName,
    BlockM,
    Clamp,
    Experts,
    Hidden,
    Intermediate,
    KernelName,
    Lookahead,
    PresetName,
    Ranks,
    RecipeName,
    Stages,
    Topk,
    asked_arch,
    build_config,
    build_problem,
)
=======
from .config_options import CompiledOptions
from .errors import one_line_errors
from .options import takes
>>>>>>> main
from .tables import config_table, facts, problem_table


@takes(CompiledOptions)
def export(
    given: CompiledOptions,
    folder: Annotated[Path, typer.Argument(help="Where the files go; made if need be.", file_okay=False)],
<<<<<<< HEAD
    preset: PresetName = None,
    hidden: Hidden = None,
    intermediate: Intermediate = None,
    experts: Experts = None,
    topk: Topk = None,
    ranks: Ranks = None,
    clamp: Clamp = None,
    recipe: RecipeName = None,
    tokens: Annotated[int, typer.Option(help="Tokens on every rank: chooses the tile.")] = 128,
    max_tokens: Annotated[int | None, typer.Option(help="Capacity of the buffers; --tokens by default.")] = None,
    block_m: BlockM = None,
    lookahead: Lookahead = None,
    stages: Stages = None,
    arch: ArchName = None,
    kernel: KernelName = DEFAULT_KERNEL,
    sms: Annotated[int | None, typer.Option(help="SMs of the GPU; 148 for sm_100a and 132 for sm_90a by default.")] = None,
=======
>>>>>>> main
    name: Annotated[str | None, typer.Option(help="Of the files; mega_moe with architecture, shape and tile by default.")] = None,
) -> None:
    """Compile ahead of time: an object and a shared library that any process loads through TVM FFI, with a manifest that says how."""
    console = Console()
<<<<<<< HEAD
    with one_line_errors(capacity_option(max_tokens)):
        architecture = asked_arch(arch)
        problem = build_problem(
            tokens if max_tokens is None else max_tokens,
            preset_name=preset,
            clamp=clamp,
            arch=architecture,
            recipe=recipe,
            hidden=hidden,
            intermediate=intermediate,
            num_experts=experts,
            topk=topk,
            num_ranks=ranks,
        )
        config = build_config(problem, tokens, architecture, sms, kernel, block_m=block_m, lookahead=lookahead, num_stages=stages)
=======
    with one_line_errors(given.capacity_option):
        config = given.chosen
>>>>>>> main

        from ..artifact.export import export_kernel

        with Console(stderr=True).status("compiling and linking"):
            files = export_kernel(config, folder, name)
        console.print(problem_table(config.problem), config_table(config), sep="\n")
        console.print(facts("Files", [(one.name, f"{one.stat().st_size:,} bytes") for one in files.files]))
        console.print(f'load with: ExportedKernel("{files.manifest}")  (megamoe_dsl.runtime.exported_kernel)', soft_wrap=True, markup=False)
