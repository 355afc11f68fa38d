"""Inline PTX with values as arguments.

Shared addresses are Int32, global addresses Int64, TMEM addresses Int32.  The wrappers built on `emit` are ordinary Python functions that
are traced where they are called, so constants passed as Python ints become immediates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass.cute.arch import inline_ptx


def _operands(values: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Read-only arguments, and the text of every operand: a literal for a Python int, a placeholder for a traced value."""
    arguments: list[Any] = []
    texts = []
    for value in (part for one in values for part in (one if isinstance(one, (tuple, list)) else (one,))):
        if isinstance(value, int):
            texts.append(str(value))
        else:
            texts.append(f"{{$r{len(arguments)}}}")
            arguments.append(value)
    return arguments, texts


def emit(template: str, *values: Any) -> None:
    """`emit("st.shared.b32 [{}], {};", address, 3)`: literal braces are doubled, as in str.format; a tuple stands for its parts."""
    arguments, texts = _operands(values)
    inline_ptx(template.format(*texts), read_only_args=arguments)


def emit_to(result: Any, template: str, *values: Any) -> Any:
    """Like `emit`; `{0}` is the result, of the given cutlass type, the values follow."""
    arguments, texts = _operands(values)
    return inline_ptx(template.format("{$w0}", *texts), read_only_args=arguments, write_only_types=[result])


def emit_to_many(results: Sequence[Any], template: str, *values: Any) -> tuple[Any, ...]:
    """Like `emit_to` with several results, `{0}` to `{n-1}`."""
    arguments, texts = _operands(values)
    names = [f"{{$w{i}}}" for i in range(len(results))]
    return tuple(inline_ptx(template.format(*names, *texts), read_only_args=arguments, write_only_types=list(results)))
