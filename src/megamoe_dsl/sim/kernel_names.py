"""What to call the kernels of one run."""

from __future__ import annotations

from collections.abc import Iterable

from .parser import ParsedKernel


class KernelNames:
    """Names that tell kernels apart; empty while there is only one, so that nobody reads a name that says nothing."""

    def __init__(self, kernels: Iterable[ParsedKernel] = ()) -> None:
        different = list({id(kernel): kernel for kernel in kernels}.values())
        entries = [kernel.name for kernel in different]
        self._names = {
            id(kernel): kernel.name if entries.count(kernel.name) == 1 else f"{kernel.name} ({number})"
            for number, kernel in enumerate(different, 1)
            if len(different) > 1
        }

    def of(self, kernel: ParsedKernel) -> str:
        """The name of a kernel; those of one entry name are numbered in order of their first launch."""
        return self._names.get(id(kernel), "")
