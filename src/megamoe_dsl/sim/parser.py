"""PTX text to a list of instructions.

Names are resolved here: a register declared inside a `{ }` scope becomes `name@scope`, branch targets become instruction indices, and
parameters and shared variables become offsets. Source: PTX ISA, "PTX Syntax", "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .errors import SimError
from .memory import DTYPES

TYPE_BYTES = {name: np.dtype(held).itemsize for name, held in DTYPES.items() if name not in ("pred", "f32x2")}
_VECTORS = {".v2": "xy", ".v4": "xyzw"}
REGISTER_TYPES = {*TYPE_BYTES, "pred"}

_TOKEN = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|\.loc\s+(?P<file>\d+)\s+(?P<at>\d+)[^\n]*|(?P<label>[\w$]+)\s*:(?!:)|(?P<statement>[^;]*);)"
)
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+(.*)", re.S)
_NAME = re.compile(r"(?<![\w%.$])%?[A-Za-z_$][\w$]*")
_OPERAND = re.compile(r"(?:[^,{}\[\]()]|\{[^{}]*\}|\([^()]*\)|\[(?:[^\[\]{}]|\{[^{}]*\})*\])+")
_RANGE = re.compile(r"(%?[\w$]+)<(\d+)>")
_VARIABLE = re.compile(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.(?!align)\w+\s+)*(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?"
)
_SYMBOL = re.compile(  # a declaration of the module, not the `.ptr .global .align 1` of a parameter
    r"(?:^|[;}])\s*(?:\.(?:visible|extern|weak|common)\s+)?\.(?:global|const)\s+(?:\.align\s+\d+\s+)?\.\w+\s+([A-Za-z_$%][\w$]*)", re.M
)
_CALL = re.compile(r"\{ // callseq (\d+), 0.*?\} // callseq \1", re.S)


@dataclass(slots=True)
class PtxInstruction:
    """One PTX instruction. `target` is the index of the instruction a branch goes to; `source` is the `.loc` position, if any."""

    opcode: str
    operands: list[str]
    line: int
    predicate: str | None = None
    negated: bool = False
    target: int | None = None
    source: str | None = None
    parts: tuple[str, ...] = ()
    scope: tuple[int, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: byte offset and size in the parameter block, and the type in the PTX (`b8` of an aggregate)."""

    name: str
    offset: int
    size: int
    kind: str


@dataclass(eq=False)
class ParsedKernel:
    """One entry function, ready to be bound to instruction families."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    parameter_bytes: int = 0
    registers: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, str] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    static_smem: int = 0
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    symbols: set[str] = field(default_factory=set)
    code: list[PtxInstruction] = field(default_factory=list)
    required_threads: tuple[int, ...] | None = None

    @property
    def local_stride(self) -> int:
        return _align(self.local_bytes, 16)

    @cached_property
    def waits_for_copies(self) -> bool:
        """Whether threads wait for their own `cp.async`, and not only through mbarriers."""
        return any(one.opcode.startswith("cp.async.wait") for one in self.code)

    @cached_property
    def unwritten(self) -> dict[str, int]:
        """Registers that instructions read and none writes, with the line of the first that reads one."""
        written, read = set[str](), dict[str, int]()
        for ins in self.code:
            results, *others = ins.operands or [""]
            if results.startswith("["):
                others, results = ins.operands, ""
            written.update(_NAME.findall(results))
            for name in _NAME.findall(" ".join([*others, ins.predicate or ""])):
                read.setdefault(name, ins.line)
        return {name: line for name, line in read.items() if name in self.registers and name not in written}

    @cached_property
    def sources(self) -> dict[int, str]:
        return {ins.line: ins.source for ins in self.code if ins.source}


def split_operands(text: str) -> list[str]:
    """Split at the commas outside any bracket: `[%a, {%x, %y}], %b` gives two operands."""
    return [part for one in _OPERAND.findall(text) if (part := one.strip())]


def _align(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


def _placed(declared: re.Match[str], used: int) -> tuple[str, int, int, str]:
    """A variable declared after `used` bytes of others: its name, where it begins and ends, and its type; `[]` is of no length."""
    alignment, kind, name, count = declared.groups()
    begin = _align(used, int(alignment or TYPE_BYTES[kind]))
    return name, begin, begin + TYPE_BYTES[kind] * (1 if count is None else int(count or 0)), kind


def _replace_call(match: re.Match[str]) -> str:
    """A call sequence becomes one `call` instruction that names the callee; line numbers stay."""
    callee = re.search(r"call\.uni\s+(?:\(\w+\),)?\s*([\w$]+)", match.group(0))
    return f"call {callee.group(1) if callee else 'indirect'};" + "\n" * match.group(0).count("\n")


class _Body:
    """Parses one function body, statement by statement."""

    def __init__(self, kernel: ParsedKernel, source: str, start: int, files: dict[int, str]) -> None:
        self.kernel, self.source, self.position, self.files = kernel, source, start, files
        self.scopes, self.scope_count = [0], 0
        self.labels: dict[tuple[int, str], int] = {}
        self.location: str | None = None
        self.line, self.counted = source.count("\n", 0, start) + 1, start

    def parse(self) -> None:
        while token := _TOKEN.match(self.source, self.position):
            self.position = token.end()
            match token.lastgroup:
                case "open":
                    self.scope_count += 1
                    self.scopes.append(self.scope_count)
                case "close" if len(self.scopes) == 1:
                    break
                case "close":
                    self.scopes.pop()
                case "at":
                    self.location = f"{self.files.get(int(token['file']), token['file'])}:{token['at']}"
                case "label":
                    self.labels[(self.scopes[-1], token["label"])] = len(self.kernel.code)
                case _:
                    self.statement(" ".join(token["statement"].split()), token.start("statement"))
        for ins in self.kernel.code:
            if ins.parts[0] == "bra":
                places = (self.labels.get((scope, ins.operands[0])) for scope in reversed(ins.scope))
                ins.target = next((place for place in places if place is not None), None)
                if ins.target is None:
                    raise SimError(f"PTX line {ins.line}: unknown label {ins.operands[0]}")

    def statement(self, text: str, at: int) -> None:
        self.line += self.source.count("\n", self.counted, at)
        self.counted = at
        if text.startswith(".reg"):
            self.declare_registers(text)
        elif text.startswith(".local"):
            if declared := _VARIABLE.search(text, len(".local")):
                name, self.kernel.local[name], self.kernel.local_bytes, _ = _placed(declared, self.kernel.local_bytes)
        elif text and not text.startswith((".pragma", ".param", ".shared")):
            self.kernel.code.append(self.instruction(text))

    def declare_registers(self, text: str) -> None:
        _, kind, names = text.split(maxsplit=2)
        elements = _VECTORS.get(kind, "")
        if elements:
            kind, names = names.split(maxsplit=1)
        if kind[1:] not in REGISTER_TYPES:
            raise SimError(f"PTX line {self.line}: registers of type {kind} are not supported")
        for name in map(str.strip, names.split(",")):
            many = _RANGE.fullmatch(name)
            for one in map(self.scoped, [f"{many[1]}{k}" for k in range(int(many[2]))] if many else [name]):
                parts = [f"{one}.{element}" for element in elements] or [one]
                self.kernel.registers.update(dict.fromkeys(parts, kind[1:]))
                if elements:
                    self.kernel.vectors[one] = f"{{{', '.join(parts)}}}"

    def scoped(self, name: str) -> str:
        return name if len(self.scopes) == 1 else f"{name}@{self.scopes[-1]}"

    def instruction(self, text: str) -> PtxInstruction:
        predicate, negated = None, False
        if guard := _GUARD.match(text):
            negated, predicate, text = bool(guard.group(1)), self.resolve(guard.group(2)), guard.group(3)
        opcode, _, rest = re.sub(r"^([\w.:]+)\{", r"\1 {", text).partition(" ")
        operands = split_operands(rest)
        ins = PtxInstruction(opcode, operands, self.line, predicate, negated, source=self.location, parts=tuple(opcode.split(".")))
        ins.scope = tuple(self.scopes)
        if ins.parts[0] != "bra" and len(self.scopes) > 1:
            ins.operands = [_NAME.sub(lambda m: self.resolve(m.group(0)), o) for o in operands]
        ins.operands = [self.kernel.vectors.get(o, o) for o in ins.operands]
        return ins

    def resolve(self, name: str) -> str:
        for scope in reversed(self.scopes[1:]):
            if (scoped := f"{name}@{scope}") in self.kernel.registers or scoped in self.kernel.vectors:
                return scoped
        return name


def parse(ptx: str, kernel: str | None = None) -> ParsedKernel:
    """Parse one entry function of a PTX module: the one named `kernel`, or the first."""
    files = {int(n): path.rsplit("/", 1)[-1] for n, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.M)}
    source = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), _CALL.sub(_replace_call, ptx), flags=re.S)
    source = re.sub(r"//[^\n]*", "", source)
    name = re.escape(kernel) if kernel else r"[\w$]+"
    head = re.search(rf"\.entry\s+({name})\s*(?:\((.*?)\))?\s*((?:\.\w+[^{{]*?)?)\{{", source, re.S)
    if head is None:
        raise SimError(f"no entry function {kernel or ''} in the PTX")
    result = ParsedKernel(head.group(1))
    result.symbols = set(_SYMBOL.findall(source))
    for text in split_operands(head.group(2) or ""):
        if (declared := _PARAMETER.match(text)) is None:
            raise SimError(f"cannot parse parameter: {text}")
        parameter, offset, result.parameter_bytes, kind = _placed(declared, result.parameter_bytes)
        result.parameters.append(Parameter(parameter, offset, result.parameter_bytes - offset, kind))
    if threads := re.search(r"\.reqntid\s+([\d,\s]+)", head.group(3)):
        result.required_threads = tuple(int(x) for x in threads.group(1).split(","))
    for text in re.findall(r"\.shared\s+([^;]*)", source):
        if declared := _VARIABLE.match(text.strip()):
            variable, result.shared[variable], result.static_smem, _ = _placed(declared, result.static_smem)
    _Body(result, source, head.end(), files).parse()
    return result
