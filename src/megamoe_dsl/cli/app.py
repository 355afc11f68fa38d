"""The commands of `megamoe`, `demo` among them. Errors become one line on stderr that names options, and exit code 2."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..artifact.store import DSL, dsl_version
from ..options.option import naming
from ..presets import preset as find_preset
from .bench import bench
from .export import export
from .inspect import inspect
from .layout import layout
from .simulate import simulate
from .tune import tune
from .weights import weights

BAD_INPUT = 2


class NamingOptions(TyperCommand):
    """A command whose errors name the options that fields of problems and configurations come from."""

    def invoke(self, ctx: Any) -> Any:
        with naming({str(one.name): one.opts[0] for one in self.params if one.opts[0].startswith("--")}):
            return super().invoke(ctx)


class OneLineErrors(TyperGroup):
    """The group of commands.  Errors of this package, MemoryError, OSError and text that stdout cannot encode end a command with one line;
    any other exception is a bug and keeps its traceback.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command that the arguments name, and ends the process."""
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except Exception as error:
            text = said(error)
            if text is None:
                raise
            fail(text)


def said(error: Exception) -> str | None:
    """The message for the user; None for a bug."""
    if isinstance(error, UnicodeEncodeError):
        missing = ascii(error.object[error.start])
        return f"encoding = {error.encoding!r}: must be one with {missing}; set PYTHONIOENCODING=utf-8"
    if isinstance(error, MemoryError):
        return f"memory: {str(error) or 'there is not enough'}"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename if error.filename is not None else "stdout" if drop_stdout() else None
        return error.strerror if where is None else f"{where}: {error.strerror}"
    if isinstance(error, OSError) or type(error).__module__.startswith("megamoe_dsl."):
        return str(error) or type(error).__name__
    return None


def drop_stdout() -> bool:
    """Whether stdout is closed or full.  If so, redirects it to /dev/null, so that the flush at exit raises no second error."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"")
    except io.UnsupportedOperation:  # no file
        return False
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def fail(text: str) -> NoReturn:
    """Prints the message, its first line in red, and exits with code 2."""
    first, *rest = text.splitlines()
    console = Console(stderr=True)
    with suppress(OSError):
        console.print(Text(f"error: {first}", style="bold red"), soft_wrap=True)
        if rest:
            console.print(Text("\n".join(rest)), soft_wrap=True)
    sys.exit(BAD_INPUT)


PRESET = "flash"
FOLDER = Path(".megamoe")

SIMULATED = """
What this proved: the Python in src/megamoe_dsl/kernels/moe compiled to one SM100 kernel without a GPU. The simulator ran that kernel's
PTX on every warp of both ranks: dispatch, both linears on the simulated tensor cores, SwiGLU, combine. All outputs equal an independent
PyTorch reference bit for bit. Between any two accesses to the same bytes, on either rank, there is a barrier or fence that orders them. The
second launch found its buffers clean. Speed is not simulated."""

MEASURED = """
What this showed: one launch per layer, from dispatch over NVLink to the combined result. us: microseconds per call, back to back and as a
CUDA graph; ceiling: the time that FLOP, HBM or NVLink alone would take; check: sampled tokens of every rank against a PyTorch reference -
the largest error as a share of the bound, and the share of elements that equal the reference to the bit."""


def demo() -> None:
    """Run the layer on this host's Hopper GPUs, up to eight; without any, its SM100 kernel on two simulated ranks.  Exit codes as those of
    `megamoe bench` and `megamoe simulate`."""
    console = Console()
    ranks = usable_ranks(hopper_gpus())
    if ranks:
        experts = find_preset(PRESET).problem(1).experts_per_rank
        console.print(f"DeepSeek-V4-Flash, {experts} experts per rank, on {ranks} GPU(s); the kernels are compiled first.", soft_wrap=True)
        bench(preset=PRESET, tokens="8,512,2048", ranks=str(ranks), experts_per_rank=experts, artifacts=FOLDER, out=FOLDER / "demo")
        console.print(MEASURED, soft_wrap=True)
        return
    console.print("One MoE layer over 2 ranks: 8 experts, hidden 512, intermediate 512, top-2, 13 and 7 tokens, two launches.")
    simulate(ranks=2, hidden=512, intermediate=512, experts=8, topk=2, tokens="13,7", seed=0, mask=0.2, launches=2)
    console.print(SIMULATED, soft_wrap=True)


def hopper_gpus() -> int:
    """Number of GPUs of this host; 0 unless the first is a Hopper GPU."""
    from ..target import local_target

    target = local_target()
    if target is None or target.arch.name != "sm_90a":
        return 0
    import torch

    return torch.cuda.device_count()


def usable_ranks(gpus: int) -> int:
    """The largest power of two up to the number of GPUs, and up to the preset's ranks; 0 without GPUs."""
    most = min(gpus, find_preset(PRESET).num_ranks)
    return 1 << most.bit_length() - 1 if most else 0


app = typer.Typer(
    name="megamoe",
    cls=OneLineErrors,
    help="DeepSeek-style MegaMoE kernels: compile a configuration, read what came out, run it on simulated ranks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for one in (bench, demo, export, inspect, simulate, layout, tune):
    app.command(cls=NamingOptions)(one)
app.add_typer(weights, name="weights")


def print_version(asked: bool) -> None:
    if asked:
        dsl = dsl_version()
        typer.echo(f"megamoe_dsl {__version__}, {f'{DSL} {dsl}' if dsl else f'no {DSL}'}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit.", is_eager=True, callback=print_version)] = False,
) -> None:
    """Options before a command."""
