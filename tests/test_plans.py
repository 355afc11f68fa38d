"""What the host plans without a compiler is what was committed: configurations and what their fields refuse, layouts of memory, tensor
maps."""

from __future__ import annotations

import plan_digests


def test_plans_are_those_committed() -> None:
    """`make golden` takes the present ones, for a commit that says why they changed.  Whatever a field is given, it is taken or refused by
    name: any other exception ends this test."""
    committed, present = plan_digests.read(), plan_digests.present()
    assert present.keys() == committed.keys()
    parts = [f"{name}: {part}" for name, found in present.items() for part in found if found[part] != committed[name].get(part)]
    assert not parts, "other plans than those committed"
