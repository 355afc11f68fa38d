"""The commands of `megamoe`."""

from __future__ import annotations

import typer

from .bench import bench
from .demo import demo
from .export import export
from .inspect import inspect
from .layout import layout
from .simulate import simulate
from .tune import tune

app = typer.Typer(
    name="megamoe",
    help="DeepSeek-style MegaMoE kernels: compile a configuration, read what came out, run it on simulated ranks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(bench)
app.command()(demo)
app.command()(export)
app.command()(inspect)
app.command()(simulate)
app.command()(layout)
app.command()(tune)


@app.callback()
def _group() -> None:
    """Keeps the commands named when there is only one."""


def main() -> None:
    """Entry point of the `megamoe` script."""
    app()
