"""Resource use and code of the kernels in a cubin, read from its ELF sections: no CUDA tool needed.

Source: the `.nv.info` attributes EIATTR_REGCOUNT, EIATTR_FRAME_SIZE and EIATTR_MIN_STACK_SIZE, as `cuobjdump -elf` prints them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

REGCOUNT, FRAME_SIZE, MIN_STACK_SIZE = 0x2F, 0x11, 0x12
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
