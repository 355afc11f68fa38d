"""The launches of a layer on one GPU one by one, which `moe` makes together."""

from __future__ import annotations

import torch

from megamoe_dsl.runtime.cuda_kernel import fill
from megamoe_dsl.runtime.expert_call import ExpertCall
from megamoe_dsl.runtime.expert_plan import DeviceExperts


class SteppedExperts(DeviceExperts):
    """Launches of a call whose tensors have been checked, into its own y."""

    def __call__(self, call: ExpertCall) -> torch.Tensor:
        self.route(call)
        self.fc1(call)
        for first, fc2 in call.fc2.items():
            self._fc2(fc2)
            self._sum_from(call, first)
        return call.y

    def route(self, call: ExpertCall) -> None:
        """Sorts tokens by their experts."""
        fill(self._route, {**call.arguments(call.route_tensors()), "counter": self.stream_state.address()})
        self._route.launch()

    def fc1(self, call: ExpertCall) -> None:
        """Linear1 and its activation."""
        self._fc1(call.fc1)

    def fc2(self, call: ExpertCall) -> None:
        """Linear2, of all columns."""
        for part in call.fc2.values():
            self._fc2(part)

    def sum(self, call: ExpertCall) -> None:
        """The weighted sums of tokens' rows, of all columns."""
        for first in call.fc2:
            self._sum_from(call, first)

    def _sum_from(self, call: ExpertCall, first: int) -> None:
        fill(self._sum, call.arguments(call.sum_tensors(first)))
        self._sum.launch()
