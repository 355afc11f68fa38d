"""Rich tables of a problem, a configuration and a compiled artifact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from ..kernels.mega_moe.config import REGISTER_FILE
from ..kernels.mega_moe.sm90.config import Sm90Config
from ..kernels.mega_moe.sm100.config import SMEM_CAPACITY, Sm100Config
from ..problem import Problem

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact


def facts(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """Two columns: what, value."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(str(value)))
    return table


def ruled(title: str, first: str, *others: str) -> Table:
    """A table with headings; the first column is text, the others are numbers or short."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, style="cyan")
    for heading in others:
        table.add_column(heading)
    return table


def problem_table(problem: Problem) -> Table:
    """A problem, one fact a row."""
    clamp = "none" if problem.activation_clamp is None else problem.activation_clamp
    return facts(
        "Problem",
        [
            ("ranks", problem.num_ranks),
            ("hidden, intermediate", f"{problem.hidden}, {problem.intermediate}"),
            ("experts, top-k", f"{problem.num_experts} ({problem.experts_per_rank} per rank), {problem.topk}"),
            ("tokens per rank", f"up to {problem.max_tokens_per_rank}"),
            ("recipe", f"{problem.recipe}, activation clamp {clamp}, {'fast' if problem.fast_math else 'precise'} math"),
        ],
    )


def config_table(config: Sm100Config | Sm90Config) -> Table:
    """A configuration and what follows from it, one fact a row."""
    budget = config.registers
    if isinstance(config, Sm100Config):
        tile = f"256 weight rows x {config.block_m} tokens x 128 channels over two CTAs"
        epilogue = f"{config.epilogue_warps} warps, {config.store_block_m} tokens a pass"
    else:
        columns = "tokens" if config.swap_ab else "weight rows"
        tile = f"256 weight rows x {config.block_m} tokens x 128 channels; {columns} are the wgmma's columns"
        epilogue = f"{config.epilogue_warps} warps, which also issue the wgmmas"
    return facts(
        "Configuration",
        [
            ("tile", tile),
            ("epilogue", epilogue),
            ("experts that Linear1 is ahead", config.lookahead),
            ("grid", f"{config.num_sms} CTAs of {config.num_threads} threads, clusters of {config.cluster}"),
            ("stages", config.num_stages),
            ("register budgets", f"dispatch {budget.dispatch}, loader {budget.loader}, epilogue {budget.epilogue}"),
            ("register file", f"{config.register_total} of {REGISTER_FILE}"),
        ],
    )


def artifact_table(artifact: Artifact) -> Table:
    """What the compiler says of a kernel, one fact a row."""
    resources, config = artifact.resources, artifact.config
    smem = config.smem.num_bytes
    rows = [
        ("compiled", f"for {artifact.arch} in {artifact.seconds:.2f} s; PTX of {artifact.ptx.count(chr(10))} lines"),
        ("registers", f"{resources.registers} per thread at launch"),
        ("stack and spills", f"{resources.stack_bytes} bytes"),
        ("SMEM", f"{smem} of {SMEM_CAPACITY} bytes, {config.num_stages} stages"),
    ]
    if isinstance(config, Sm100Config):
        rows.append(("TMEM", f"{config.tmem.used} of {config.tmem.allocated} allocated columns"))
    return facts("Artifact", rows)
