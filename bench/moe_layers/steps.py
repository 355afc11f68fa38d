"""The four launches of a layer on one GPU one by one, which `moe` makes together."""

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
        self.fc2(call)
        self.sum(call)
        return call.y

    def route(self, call: ExpertCall) -> None:
        """Sorts tokens by their experts."""
        fill(self._route, {**call.arguments(call.route_tensors()), "counter": self.stream_state.address()})
        self._route.launch()

    def fc1(self, call: ExpertCall) -> None:
        """Linear1 and its activation."""
        self._fc1(call.fc1)

    def fc2(self, call: ExpertCall) -> None:
        """Linear2."""
        self._fc2(call.fc2)

    def sum(self, call: ExpertCall) -> None:
        """The weighted sum of a token's rows."""
        fill(self._sum, call.arguments(call.sum_tensors()))
        self._sum.launch()
