"""Kernels of another project in a library that nvcc has made, called by their C++ names on torch's tensors and current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

STREAM = torch.empty(0)
"""Stands for torch's current stream among arguments."""


class CudaLibrary:
    """Functions of a library by short names; `symbols` are what it calls them."""

    def __init__(self, library: Path, symbols: Mapping[str, str]) -> None:
        found = ctypes.CDLL(str(library.resolve()))
        self.functions = {name: getattr(found, symbol) for name, symbol in symbols.items()}

    def __call__(self, name: str, *arguments: torch.Tensor | int | None) -> None:
        """Tensors go by address, None is no address, `STREAM` the stream, and numbers are of 32 bits."""
        stream = torch.cuda.current_stream().cuda_stream
        self.functions[name](*(ctypes.c_int(one) if isinstance(one, int) else address(one, stream) for one in arguments))


def address(one: torch.Tensor | None, stream: int) -> ctypes.c_void_p:
    """Of a tensor's memory, or of the stream."""
    return ctypes.c_void_p(None if one is None else stream if one is STREAM else one.data_ptr())
