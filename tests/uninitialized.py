"""Memory that nobody has written holds NaN, and the largest integers."""

from collections.abc import Iterator

import torch


def uninitialized_memory_is_garbage() -> Iterator[None]:
    """A fixture's function: what `torch.empty` and its kin allocate on the CPU, so that a result that depends on it differs."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        yield
    finally:
        torch.use_deterministic_algorithms(False)
