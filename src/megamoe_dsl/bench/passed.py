"""Whether a point was right."""

from __future__ import annotations

from typing import Any

from .point import BASELINE_TOLERANCE


def passed(record: dict[str, Any]) -> bool:
    """Whether a record has no error, no wrong variant, no mismatch, and a baseline that agrees if one was asked for."""
    if "error" in record or "baseline_error" in record:
        return False
    if "trace" in record:
        return True
    if "soak" in record:
        soak = record["soak"]
        return not (soak["mismatches"] or soak["wrong_sets"] or soak.get("unequal_to_unfused", 0))
    return all(
        (entry["check"] is None or entry["check"]["passed"])
        and entry.get("unfused", {"passed": True})["passed"]
        and entry.get("difference_to_baseline", 0.0) <= BASELINE_TOLERANCE
        for entry in record["variants"].values()
    )
