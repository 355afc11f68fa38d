"""A compiled kernel: PTX and cubin, and what can be read from them without a CUDA tool."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..arch import Arch
from ..kernels.kernel import Kernel
from ..kernels.registry import kernel_of
from ..sass.listing import Listing, disassemble
from ..sass.measurer import Measure
from ..sass.overtaken_loads import OvertakenLoad, overtaken_loads


class CompileError(RuntimeError):
    """The kernel does not compile."""


@dataclass(frozen=True)
class Artifact:
    """The compiled kernel of a configuration.

    seconds    from Python source to cubin
    line_info  PTX and cubin name Python lines
    """

    config: Any
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    seconds: float
    line_info: bool = False

    @property
    def arch(self) -> Arch:
        return self.config.arch

    @property
    def kernel(self) -> Kernel:
        return kernel_of(self.config)

    @cached_property
    def entry(self) -> str:
        match = re.search(r"\.entry\s+([\w$]+)", self.ptx)
        if match is None:
            raise CompileError("the PTX has no .entry")
        return match.group(1)

    @cached_property
    def resources(self) -> Resources:
        return read_resources(self.cubin)[self.entry]

    @cached_property
    def listing(self) -> Listing:
        """Disassembled instructions.  Takes a second or two; raises `DisassemblyError` when nvdisasm is missing."""
        return disassemble(self.cubin)

    @property
    def sass(self) -> str:
        return self.listing.text

    @cached_property
    def overtaken_loads(self) -> list[OvertakenLoad]:
        """Loads from shared memory whose buffer is released before they have ended (sass/overtaken_loads.py); raises as `listing`."""
        return overtaken_loads(self.listing, read_code(self.cubin, self.entry))

    @cached_property
    def measures(self) -> list[Measure]:
        """Instructions of every role per unit of its work (sass/measurer.py); none for a kernel that declares no roles.  Needs line info;
        raises `InspectionError` otherwise."""
        return self.kernel.measures(self.config, self.listing)

    def histogram(self, role: str) -> dict[str, dict[str, float]]:
        """Unit of work to instructions of each kind, for a role as `measures` names it.  Raises as `measures`, and KeyError."""
        found = {one.unit: one.kinds for one in self.measures if one.role == role}
        if not found:
            raise KeyError(f"role {role!r}: must be one of {', '.join(dict.fromkeys(one.role for one in self.measures))}")
        return found

    @property
    def dynamic_smem(self) -> int:
        """Bytes of dynamic shared memory of a launch; 0 for kernels without a plan."""
        return self.kernel.dynamic_smem(self.config)


REGCOUNT, FRAME_SIZE, MIN_STACK_SIZE = 0x2F, 0x11, 0x12  # EIATTR_... of `.nv.info`, as `cuobjdump -elf` prints them
VALUE_FORM = 4  # attribute with a sized payload
NO_BITS = 8  # section without content in the file


@dataclass(frozen=True)
class Resources:
    """`registers` per thread at launch; `stack_bytes` per thread: frames and spills, 0 when nothing spills."""

    registers: int
    stack_bytes: int


def _sections(elf: bytes) -> dict[str, bytes]:
    if elf[:4] != b"\x7fELF":
        raise ValueError("not an ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names = elf[headers[names_index][4] :][: headers[names_index][5]]
    return {names[h[0] : names.index(b"\0", h[0])].decode(): b"" if h[1] == NO_BITS else elf[h[4] : h[4] + h[5]] for h in headers}


def read_code(cubin: bytes, entry: str) -> bytes:
    """The instructions of a kernel.  Raises ValueError when `cubin` is not an ELF file, KeyError when it has no such kernel."""
    return _sections(cubin)[f".text.{entry}"]


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """Resources by kernel name.  Raises ValueError when `cubin` is not an ELF file."""
    sections = _sections(cubin)
    strings = sections[".strtab"]
    symbols = [struct.unpack_from("<I", sections[".symtab"], o)[0] for o in range(0, len(sections[".symtab"]), 24)]
    info, offset = sections[".nv.info"], 0
    found: dict[str, dict[int, int]] = {}
    while offset < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, offset)
        if form == VALUE_FORM and size == 8 and attribute in (REGCOUNT, FRAME_SIZE, MIN_STACK_SIZE):
            symbol, value = struct.unpack_from("<II", info, offset + 4)
            name = strings[symbols[symbol] : strings.index(b"\0", symbols[symbol])].decode()
            found.setdefault(name, {})[attribute] = value
        offset += 4 + (size if form == VALUE_FORM else 0)
    return {
        name: Resources(values[REGCOUNT], max(values.get(FRAME_SIZE, 0), values.get(MIN_STACK_SIZE, 0)))
        for name, values in found.items()
        if REGCOUNT in values
    }
