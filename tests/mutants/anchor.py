"""Places in the package's sources, found by structure: neither files, folders, line breaks, comments nor docstrings matter."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import indent


class MutantError(ValueError):
    """A mutant does not fit the sources as they are."""


@dataclass(frozen=True)
class Code:
    """Python source as a tree: one expression, or statements (none for empty text)."""

    text: str

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Raises MutantError for what is not Python."""
        try:
            return ast.parse(self.text).body
        except SyntaxError as error:
            raise MutantError(f"not Python: {self.text}") from error

    @property
    def expression(self) -> ast.expr | None:
        match self.statements:
            case [ast.Expr(value)]:
                return value
        return None

    @property
    def keyword(self) -> ast.keyword | None:
        """`name=value` as an argument of a call."""
        match self.statements:
            case [ast.Assign(targets=[ast.Name(name)], value=value)]:
                return ast.keyword(name, value)
        return None

    @cached_property
    def normal(self) -> str:
        """The same for all texts of one tree."""
        return "\n".join(map(ast.unparse, self.statements))


@dataclass(frozen=True)
class Place:
    """Nodes in a row, from the first one's start to the last one's end, in bytes of lines."""

    start: tuple[int, int]
    end: tuple[int, int]

    @classmethod
    def of(cls, nodes: Sequence[ast.expr | ast.keyword | ast.stmt]) -> Place:
        first = min([nodes[0], *getattr(nodes[0], "decorator_list", [])], key=lambda node: node.lineno)
        at = first.col_offset if first is nodes[0] else nodes[0].col_offset
        assert nodes[-1].end_lineno is not None and nodes[-1].end_col_offset is not None
        return cls((first.lineno - 1, at), (nodes[-1].end_lineno - 1, nodes[-1].end_col_offset))

    def replaced(self, text: str, new: str) -> str:
        """`text` with `new` there."""
        lines = text.encode().splitlines(keepends=True)
        (first, start), (last, end) = self.start, self.end
        new = indent(new, " " * start).strip()
        return b"".join([*lines[:first], lines[first][:start], new.encode(), lines[last][end:], *lines[last + 1 :]]).decode()


@dataclass(frozen=True)
class Definition:
    """What a qualified name stands for: a function, a class, or the assignment of a constant or field."""

    file: Path  # from the package's folder
    node: ast.stmt

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts)

    def changes(self, old: Code, new: Code) -> Iterator[tuple[Place, str]]:
        """Where `old` stands in it, and the text that then comes there.  Raises MutantError when they elide different statements."""
        if old.expression is not None and new.expression is not None:
            for node in self._like(old.expression):
                yield Place.of([node]), f"({new.text})"
            return
        if [head(one) for one in old.statements if elided(one)] != [head(one) for one in new.statements if elided(one)]:
            raise MutantError(f"what is elided is not the same in both texts:\n{old.text}\n{new.text}")
        text = "\n".join(ast.unparse(new.statements[number]) for number in unelided(new.statements)) or "pass"
        for node in ast.walk(self.node):
            for _, body in ast.iter_fields(node):
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    yield from ((place, text) for place in runs(body, old.statements))
        if old.keyword is not None and new.keyword is not None:
            for node in self._like(old.keyword):
                yield Place.of([node]), ast.unparse(new.keyword)

    def _like(self, wanted: ast.expr | ast.keyword) -> list[ast.expr | ast.keyword]:
        kind, text = type(wanted), ast.dump(wanted)
        return [node for node in ast.walk(self.node) if type(node) is kind and ast.dump(node) == text]


def elided(node: ast.stmt) -> bool:
    """Whether a compound statement is there by its head alone: `if lane == 0: ...`."""
    return [ast.unparse(one) for one in getattr(node, "body", ())] == ["..."]


def head(node: ast.stmt) -> str:
    """What an elided statement has in common with a whole one."""
    fields = {name: value for name, value in ast.iter_fields(node) if name not in ("body", "orelse")}
    return ast.dump(type(node)(**fields, body=[], orelse=[]))


def same(there: ast.stmt, wanted: ast.stmt) -> bool:
    """Whether a statement is the wanted one, or has its head where the body is elided."""
    if elided(wanted):
        return type(there) is type(wanted) and head(there) == head(wanted)
    return ast.dump(there) == ast.dump(wanted)


def unelided(statements: Sequence[ast.stmt]) -> range:
    """Numbers of those between elided ones.  Raises MutantError when an elided one is among them."""
    whole = [number for number, node in enumerate(statements) if not elided(node)]
    if len(whole) != len(numbers := range(whole[0] if whole else 0, whole[-1] + 1 if whole else 0)):
        raise MutantError("an elided statement stands before or behind what changes, not within it")
    return numbers


def runs(body: Sequence[ast.stmt], wanted: Sequence[ast.stmt]) -> Iterator[Place]:
    """Where these statements follow one another, without the elided ones around them."""
    changed = unelided(wanted)
    for first in range(len(body) - len(wanted) + 1):
        if changed and all(map(same, body[first:], wanted)):
            yield Place.of(body[first + changed.start : first + changed.stop])


def named(body: Sequence[ast.AST], prefix: str = "", constants: bool = True) -> Iterator[tuple[str, ast.stmt]]:
    """Qualified names of what statements define, nested functions and classes among them, but no function's variables."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name, body=inner) | ast.ClassDef(name=name, body=inner):
                yield prefix + name, node
                yield from named(inner, f"{prefix}{name}.", isinstance(node, ast.ClassDef))
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) if constants:
                names = (one for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
                yield from ((prefix + one.id, node) for one in names)
            case ast.stmt() | ast.excepthandler() | ast.match_case():
                yield from named(list(ast.iter_child_nodes(node)), prefix, constants)


@cache
def definitions(package: Path) -> dict[str, list[Definition]]:
    """All of a package, by qualified name."""
    found: dict[str, list[Definition]] = {}
    for path in sorted(package.rglob("*.py")):
        for name, node in named(ast.parse(path.read_text(encoding="utf-8")).body):
            found.setdefault(name, []).append(Definition(path.relative_to(package), node))
    return found


def called(package: Path, where: str) -> list[Definition]:
    """All that `where` names: `NAME`, or `MODULE:NAME` with the end of a module's path.  Raises MutantError when it names nothing."""
    module, _, name = where.rpartition(":")
    found = [one for one in definitions(package).get(name, []) if f".{one.module}".endswith(f".{module}" if module else "")]
    if not found:
        raise MutantError(f"{where} names nothing in the package")
    return found


def change(package: Path, where: str, old: Code, new: Code) -> tuple[Path, str]:
    """The file of what `where` names, and its text with `new` for `old`.  Raises MutantError unless `old` stands there exactly once."""
    there = called(package, where)
    found = [(one, place, text) for one in there for place, text in one.changes(old, new)]
    if len(found) != 1:
        modules = ", ".join(one.module for one in there)
        raise MutantError(f"{where} (in {modules}) has this {len(found)} times, not once:\n{old.text}")
    [(one, place, text)] = found
    return one.file, place.replaced((package / one.file).read_text(encoding="utf-8"), text)
