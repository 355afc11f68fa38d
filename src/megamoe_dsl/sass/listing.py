"""SASS of a cubin, as `nvdisasm` prints it: instructions with their operation, branch target, source line and live registers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_LINE_INFO = re.compile(r'\s*//## File "([^"]+)", line (\d+)')
_LABEL = re.compile(r"\s*([.$\w]+):\s*$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


class DisassemblyError(RuntimeError):
    """nvdisasm is missing, or does not accept the cubin."""


@dataclass(frozen=True)
class Instruction:
    """`target` is the address that a branch names, `source` the (file, line) of the innermost Python frame, `highest` the largest index of
    an R register that is read or written, pairs and quads included (-1: none)."""

    address: int
    predicate: str
    opcode: str
    operands: str
    target: int | None
    source: tuple[str, int] | None
    highest: int

    @property
    def operation(self) -> str:
        return self.opcode.split(".", 1)[0]

    @property
    def kind(self) -> str:
        return kind_of(self.opcode)


KINDS: tuple[tuple[str, str], ...] = (
    ("mma", r"UTC\w*MMA|\w*GMMA"),
    ("utccp", r"UTCCP"),
    ("commit", r"UTCBAR"),
    ("tma", r"UTMA\w+|UBLK\w+"),
    ("mbarrier", r"SYNCS"),
    ("tmem", r"LDTM|STTM|UTCATOMSWS"),
    ("smem", r"LDS|STS|LDSM|STSM|ATOMS|UST|ULDS"),
    ("gmem", r"LDG|STG|LD|ST|RED|REDG|ATOM|ATOMG|U?LDCU?"),
    ("spill", r"LDL|STL"),
    ("float", r"U?FH?(ADD|MUL|FMA|SETP|SET|SEL|MNMX|CHK)\d?|MUFU|H(ADD|MUL|FMA|MNMX|SETP|SET)2\w*|F2\w+|I2F\w*"),
    ("control", r"BRA|BRX|BSSY|BSYNC|BREAK|EXIT|CALL|RET|WARPSYNC|YIELD|NOP|NANOSLEEP|BPT|ENDCOLLECTIVE|ELECT|USETMAXREG"),
    ("sync", r"BAR|WARPGROUP|MEMBAR|FENCE|ERRBAR|CGAERRBAR|UCGABAR_\w+|CCTL|DEPBAR|LDGDEPBAR|ACQBULK"),
    ("vector to uniform", r"R2UR|S2UR|S2R|CS2R|UREDUX|REDUX|VOTE|VOTEU|SHFL|MATCH"),
)
"""Instruction kinds by operation; what matches none is integer: moves, addresses, predicates, loop counters."""


@lru_cache(maxsize=1024)
def kind_of(opcode: str) -> str:
    """The kind of an opcode: the first of `KINDS` whose pattern is its operation, or integer."""
    operation = opcode.split(".", 1)[0]
    return next((kind for kind, pattern in KINDS if re.fullmatch(pattern, operation)), "integer")


@dataclass(frozen=True)
class Listing:
    """The instructions of one kernel, in address order; `text` is nvdisasm's own output."""

    text: str
    instructions: tuple[Instruction, ...]

    @property
    def spills(self) -> tuple[int, int]:
        counts = Counter(i.operation for i in self.instructions)
        return counts["LDL"], counts["STL"]


NVDISASM = {"nvidia": "**/bin/nvdisasm*", "triton": "backends/nvidia/bin/nvdisasm*"}
"""Packages that contain nvdisasm, and its path in them: NVIDIA's wheel, a dependency, and Triton, which comes with torch for CUDA."""


def find_nvdisasm() -> str:
    """Path of an nvdisasm: of one of the packages `NVDISASM`, or on PATH.  Raises `DisassemblyError` that says what to install."""
    for package, pattern in NVDISASM.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for found in sorted(Path(folder).glob(pattern)):
                return str(found)
    found_on_path = shutil.which("nvdisasm")
    if found_on_path is None:
        raise DisassemblyError("nvdisasm is not installed: `pip install nvidia-cuda-nvdisasm`, or put a CUDA toolkit's bin on PATH")
    return found_on_path


def disassemble(cubin: bytes) -> Listing:
    """The listing of a cubin with one kernel.  Takes about a second; raises `DisassemblyError`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([find_nvdisasm(), "-c", "-g", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise DisassemblyError(f"nvdisasm: {done.stderr.strip() or done.returncode}")
    return parse(done.stdout)


def parse(text: str) -> Listing:
    """The listing in nvdisasm's output."""
    labels: dict[str, int] = {}
    pending: list[str] = []
    source: tuple[str, int] | None = None
    rows: list[tuple[re.Match[str], tuple[str, int] | None]] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            labels.update(dict.fromkeys(pending, int(match[1], 16)))
            pending.clear()
            rows.append((match, source))
        elif match := _LINE_INFO.match(line):
            source = (match[1], int(match[2]))
        elif match := _LABEL.match(line):
            pending.append(match[1])
    instructions = []
    for match, where in rows:
        address, predicate, opcode, operands = int(match[1], 16), match[2] or "", match[3], match[4].strip()
        target = _TARGET.search(operands)
        goes_to = labels.get(target[1]) if target else None
        instructions.append(Instruction(address, predicate, opcode, operands, goes_to, where, highest_named(opcode, operands)))
    return Listing(text, tuple(instructions))


_REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.64)?")
_ACCUMULATOR = re.compile(r"GMMA\.64x(\d+)x\d+\.F32")
_TENSOR_MEMORY = re.compile(r"(?:LDTM|STTM)\.(\d+)dp(\d+)bit(?:\.x(\d+))?")


def highest_named(opcode: str, operands: str) -> int:
    """The highest R register of an instruction, counting the pair, quad or accumulator that begins at a named one; -1 for none.  Agrees
    with nvdisasm's own tables (tests/test_inspect.py)."""
    accumulator, tensor_memory = _ACCUMULATOR.search(opcode), _TENSOR_MEMORY.match(opcode)
    parts = operands.split(",")
    found = -1
    for place, part in enumerate(parts):
        in_address = "[" in part
        for match in _REGISTER.finditer(part):
            width = 1
            if in_address:
                width = 2 if match[2] else 1
            elif accumulator:
                width = int(accumulator[1]) // 2 if place == 0 else 1
            elif tensor_memory:
                lanes, bits, repeats = (int(one or 1) for one in tensor_memory.groups())
                width = lanes * bits * repeats // 1024
            elif ".WIDE" in opcode:
                width = 2 if place in (0, len(parts) - 1) else 1
            elif ".128" in opcode:
                width = 4
            elif ".64" in opcode or opcode == "CS2R" or opcode.startswith("RET."):
                width = 2
            found = max(found, int(match[1]) + width - 1)
    return found
