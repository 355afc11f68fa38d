"""The error of a checkpoint that cannot be loaded."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(ValueError):
    """Says which file and which tensor, and what is wrong with it.

    file, tensor   where known; they begin the message
    expert         local expert that was being loaded: those before it are in place, and `load_experts(..., start=expert)` goes on
    """

    def __init__(self, what: str, *, file: Path | None = None, tensor: str | None = None) -> None:
        super().__init__(": ".join(str(one) for one in (file, tensor, what) if one is not None))
        self.what, self.file, self.tensor = what, file, tensor
        self.expert: int | None = None
