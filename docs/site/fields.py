"""Columns `name   meaning` of docstrings as lists, and the pages that docstrings name as links, for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*) {2,}(\S.*)")
PAGE = re.compile(r"docs/(\w+/\w+)\.md(?:(#[\w-]+))?")
TO_ROOT = "../../"  # from reference/api/NAME.html


def with_lists(text: str) -> str:
    """Consecutive lines `name   meaning`, with indented lines that go on, become items of a list."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if found := FIELD.fullmatch(line):
            lines += [] if inside else [""]
            lines.append(f"- `{found[1]}`: {found[2]}")
            inside = True
        elif inside and line.startswith(" "):
            lines.append(f"    {line.strip()}")
        else:
            lines += [""] if inside and line else []
            lines.append(line)
            inside = False
    return "\n".join(lines)


def with_links(text: str) -> str:
    return PAGE.sub(lambda found: f'<a href="{TO_ROOT}{found[1]}.html{found[2] or ""}">{found[1]}</a>', text)


def without_references(text: str) -> str:
    """`slots[e][r]` outside code names no page."""
    parts = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("`") else part.replace("[", r"\[") for part in parts)


class Fields(griffe.Extension):
    """Rewrites every docstring once, as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_links(with_lists(without_references(obj.docstring.value)))
