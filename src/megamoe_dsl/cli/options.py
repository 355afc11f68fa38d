"""Options that are declared as fields of a dataclass (options/option.py), as typer reads them: in the signature of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from ..options.option import Option, options_of


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function whose first parameter is a `kind`: it has the options of `kind`, then those of the other parameters."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(run).parameters.values())[1:]
        hints = get_type_hints(run, include_extras=True)

        def command(**given: Any) -> None:
            options = kind(**{one.name: given.pop(one.name) for one in fields(kind) if one.name in given})
            run(options, **given)

        parameters = [
            *(Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation(one)) for one in options_of(kind)),
            *(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own),
        ]
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def annotation(one: Option) -> Any:
    """An option's type as typer wants it."""
    shown = True if one.shown is None else one.shown
    return Annotated[one.annotation, typer.Option(one.flag, help=one.text, rich_help_panel=one.panel, show_default=shown)]
