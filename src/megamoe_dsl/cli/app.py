"""The commands of `megamoe`."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from ..artifact.store import DSL, dsl_version
from .bench import bench
from .demo import demo
from .errors import OneLineErrors
from .export import export
from .fuzz import fuzz
from .inspect import inspect
from .layout import layout
from .predict import predict
from .simulate import simulate
from .tune import tune
from .weights import weights

app = typer.Typer(
    name="megamoe",
    cls=OneLineErrors,
    help="DeepSeek-style MegaMoE kernels: compile a configuration, read what came out, run it on simulated ranks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(bench)
app.command()(demo)
app.command()(export)
app.command()(fuzz)
app.command()(inspect)
app.command()(simulate)
app.command()(layout)
app.command()(predict)
app.command()(tune)
app.add_typer(weights, name="weights")


def print_version(asked: bool) -> None:
    """Prints the versions of the package and of the DSL that compiles its kernels, then exits."""
    if asked:
        dsl = dsl_version()
        typer.echo(f"megamoe_dsl {__version__}, {f'{DSL} {dsl}' if dsl else f'no {DSL}'}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.", is_eager=True, callback=print_version)] = False,
) -> None:
    """Options before a command."""
