"""Cases of which the suite has another of their kind."""

from __future__ import annotations

from typing import Any

import pytest


def rarely(*values: Any) -> Any:
    """Values of a case that `python -m pytest -m sweep` runs."""
    return pytest.param(*values, marks=pytest.mark.sweep)
