"""Memory that nobody has written holds NaN, and the largest integers."""

from collections.abc import Iterator

import torch


def uninitialized_memory_is_garbage() -> Iterator[None]:
    """A fixture's function: what `torch.empty` and its kin allocate on the CPU, so that a result that depends on it differs."""
    torch.set_deterministic_debug_mode("warn")  # `use_deterministic_algorithms` imports a compiler
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        yield
    finally:
        torch.set_deterministic_debug_mode("default")
