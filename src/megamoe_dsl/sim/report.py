"""The result of a run: findings and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .parser import ParsedKernel


@dataclass
class Finding:
    """Two accesses that nothing orders, or a missing proxy fence or scope. Kernels are named where there are several; sources come from
    `.loc`. `count` is how often these lines met in this kind of memory; agents and `where` are of the first time."""

    kind: str
    first: str
    second: str
    where: str
    first_line: int
    second_line: int
    first_source: str = ""
    second_source: str = ""
    first_kernel: str = ""
    second_kernel: str = ""
    count: int = 1

    def __str__(self) -> str:
        first = f"{self.first} ({describe_line(self.first_line, self.first_kernel, self.first_source)})"
        second = f"{self.second} ({describe_line(self.second_line, self.second_kernel, self.second_source)})"
        return f"{self.kind} at {self.where}: {first} then {second}, {self.count} times"


def describe_line(line: int, kernel: str, source: str) -> str:
    return f"PTX line {line}" + (f" of {kernel}" if kernel else "") + (f", {source}" if source else "")


@dataclass
class Report:
    """Result of one run: warp `instructions`, and bytes that asynchronous copies moved between ranks (`crossed`)."""

    instructions: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    crossed: int = 0

    def by_source(self) -> list[Finding]:
        """The findings, one for each kind and pair of source lines (of PTX lines where no source is known); counts are added."""
        groups: dict[tuple[object, ...], Finding] = {}
        for one in self.findings:
            first, second = one.first_source or one.first_line, one.second_source or one.second_line
            key = one.kind, one.first_kernel, first, one.second_kernel, second
            groups[key] = replace(one, count=one.count + (groups[key].count if key in groups else 0))
        return list(groups.values())

    def __str__(self) -> str:
        findings = self.by_source()
        done = f"{self.instructions:,} warp instructions in {self.seconds:.1f} s, {len(findings)} findings"
        warnings = [f"warning: {text}, {count} times" for text, count in self.warnings.items()]
        return "\n".join([done, *map(str, findings), *warnings])


def kernel_names(kernels: Iterable[ParsedKernel]) -> dict[ParsedKernel, str]:
    """Names that tell kernels apart, those of one entry name by a number in order of their first launch; empty names while there is only
    one, so that nobody reads a name that says nothing."""
    different = list(dict.fromkeys(kernels))
    entries = [kernel.name for kernel in different]
    numbered = [name if entries.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(entries, 1)]
    return dict(zip(different, numbered if len(different) > 1 else [""], strict=True))
