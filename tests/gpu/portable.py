"""Pickles with tensors that load under another release of torch."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


def restore(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """A tensor from its bytes."""
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).view(shape)


class TensorPickler(pickle.Pickler):
    """Tensors as bytes: torch's own pickles of float8 do not load in another release of torch."""

    def reducer_override(self, value: Any) -> Any:
        """A tensor on the CPU as a call of `restore`; anything else as pickle does it."""
        if isinstance(value, torch.Tensor):
            raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
            return restore, (str(value.dtype).removeprefix("torch."), tuple(value.shape), raw)
        return NotImplemented


def dump(record: Any) -> bytes:
    """A pickle of `record`; `pickle.loads` reads it where this package is installed."""
    file = io.BytesIO()
    TensorPickler(file).dump(record)
    return file.getvalue()
