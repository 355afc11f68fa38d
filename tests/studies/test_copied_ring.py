"""The study of rings that one warp fills (studies/copied_ring.py): right ones are clean in the simulator, and a late wait is a race."""

from __future__ import annotations

import pytest

from copied_ring import COPIED, EMPTY, FULL, STORED, CopiedRing, CopiedRingConfig, CopiedRingKernel
from copied_ring_run import simulate
from megamoe_dsl.artifact.compile import compile_kernel
from megamoe_dsl.kernels import registry

RIGHT = CopiedRing(COPIED), CopiedRing(COPIED, EMPTY), CopiedRing(STORED, FULL)
WRONG = CopiedRing(COPIED, late=FULL), CopiedRing(COPIED, late=EMPTY)


@pytest.mark.parametrize("ring", [*RIGHT, *WRONG], ids=lambda ring: ring.name)
def test_the_simulator_tells_them_apart(ring: CopiedRing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KERNELS", [*registry.KERNELS, CopiedRingKernel()])
    right, report = simulate(compile_kernel(CopiedRingConfig(ring)))
    assert bool(report.findings) == bool(ring.late)
    assert right or ring.late
