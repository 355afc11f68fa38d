"""The expert-parallel kernels of SM100 on simulated ranks: rows of Linear1 and y of every token to the bit, race detector on."""

from __future__ import annotations

from dataclasses import replace

from ep_runs import check_combine, check_dispatch, problem, row_activations, simulated
from mega_moe_runs import artifact

from megamoe_dsl.cases import random_case
from megamoe_dsl.kernels.ep_moe.sm100.config import Sm100DispatchGemmConfig

MOE = problem(recipe="fp8xfp4")
SMALL = Sm100DispatchGemmConfig(MOE, num_sms=2)


def test_two_ranks() -> None:
    """Dropped pairs, most tokens for the same few experts; a rank without tokens; all pairs dropped."""
    masked, skewed = random_case(MOE, (20, 9), 1, mask=0.3), random_case(MOE, (0, 20), 2, skew=True)
    ep = simulated(SMALL, masked)
    for scatter in (True, False):
        ep.combine_kernel = artifact(ep.combine_kernel.config.replace(scatter=scatter))
        assert check_dispatch(ep, masked) > 0
        assert check_combine(ep, masked, row_activations(ep, 0)) == 29
        again = replace(skewed, weights=masked.weights)
        assert check_dispatch(ep, again) == 60
        assert check_combine(ep, again, row_activations(ep, 1)) == 20
