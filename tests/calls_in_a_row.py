"""Two calls in a row that differ in one thing: what a process keeps of the first must not show in the second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from megamoe_dsl.config_error import ConfigError
from recorded_gpu import Launched, RecordedGpu, recorded_gpu

Arguments = Mapping[str, Any]
OPTIONAL = ("w1_sf", "w2_sf", "factors", "score_bias", "bias", "a_sf", "b_sf", "out", "sources", "replicas")
FIRST_COUNTER = ("a counter", "a counter of an early launch")


@dataclass(frozen=True)
class Call:
    """Arguments by name, torch's current stream, capture and device, and the names of tensors that lie on the other GPU."""

    arguments: Arguments
    stream: int = 0
    capture: int | None = None
    device: int = 0
    far: tuple[str, ...] = ()

    def but(self, **arguments: Any) -> Call:
        """The same with other arguments."""
        return replace(self, arguments={**self.arguments, **arguments})


Outcome = list[Launched] | str


@dataclass
class Calls:
    """Calls of a function on one GPU; `make` makes it there."""

    make: Callable[[RecordedGpu], Callable[..., Any]]
    arch: str = "sm_90a"
    _function: Callable[..., Any] | None = field(default=None, init=False)

    def outcome(self, gpu: RecordedGpu, call: Call) -> Outcome:
        """Its launches, or the error."""
        self._function = self._function or self.make(gpu)
        gpu.stream, gpu.capture, gpu.device = call.stream, call.capture, call.device
        gpu.mode.far = {call.arguments[name].untyped_storage().data_ptr() for name in call.far}
        try:
            return [_with_any_counter(one) for one in gpu.call(self._function, **call.arguments)]
        except (ValueError, ConfigError) as error:
            return f"{error}, after {len(gpu.launched())} launches"

    def outcomes(self, *calls: Call) -> list[Outcome]:
        """What they do one after another, on a GPU that has run nothing before."""
        self._function = None
        with recorded_gpu(self.arch) as gpu:
            return [self.outcome(gpu, one) for one in calls]


def differences(found: Outcome, wanted: Outcome) -> list[str]:
    """What is not as wanted, one line for each argument of each launch."""
    if isinstance(found, str) or isinstance(wanted, str) or [type(one.config) for one in found] != [type(one.config) for one in wanted]:
        return [] if found == wanted else [f"{_short(found)} instead of {_short(wanted)}"]
    lines = []
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        own, others = ({"config": a.config, "stream": a.stream, "early": a.early, **a.arguments} for a in (one, other))
        lines += [
            f"launch {number}, {name}: {own.get(name)} instead of {value}" for name, value in others.items() if own.get(name) != value
        ]
    return lines


def _short(outcome: Outcome) -> str:
    return outcome if isinstance(outcome, str) else f"{len(outcome)} launches"


def must_be_refused(change: str) -> bool:
    """Whether no call allows such a change."""
    shifted = tuple(f"{name}, shifted" for name in ("x", "w1", "w2", "l1", "l2", "a", "b", "left", "right", "out", "stored"))
    strided = tuple(f"{name}, strided" for name in ("w1", "w2", "topk_idx", "topk_weights"))
    numbers = ("out of other rows", "too much padding", "too many tokens")
    return change.endswith((", far", "of another dtype", "another device")) or change.startswith((*shifted, *strided, *numbers))


SHOWN = (
    *("up first", "another activation", "fewer", "more tokens", "stored", "one expert", "softmax", "scaled", "bf16", "f32", "added"),
    *("another clamp", "another shift", "recomputed", "frozen", "columns alone", "aligned", "contiguous", "masked", "times two", "exact"),
    *("another stream", "another layer", "one token", "another bound", "padding", "other numbers", "one group"),
)


def must_show(change: str) -> bool:
    """Whether launches are others than without such a change, where tensors' addresses are but names."""
    return change.startswith(SHOWN) and change != "another layer of the shape"


def _with_any_counter(launched: Launched) -> Launched:
    """Which counter a launch has depends on those before it, and is tested apart."""
    if "memory" in launched.arguments:
        return replace(launched, arguments={**launched.arguments, "memory": FIRST_COUNTER[0]})
    name = str(launched.arguments.get("counter", ""))
    if not name.startswith("counters"):
        return launched
    early = int(name.partition(" + ")[2] or 0) % 12 > 0
    return replace(launched, arguments={**launched.arguments, "counter": FIRST_COUNTER[early]})


def changes_of_tensors(call: Call) -> dict[str, Call]:
    """For each tensor the call with another one of its kind, with one of another dtype, strides, alignment, device, and without it."""
    found: dict[str, Call] = {}
    for name, tensor in call.arguments.items():
        if isinstance(tensor, torch.Tensor):
            wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1)
            shifted = tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)
            others: dict[str, Any] = {
                "another": tensor.clone(),
                "of another dtype": tensor.to(torch.float64),
                "strided": wide[..., : tensor.shape[-1]],
                "shifted": shifted,
            } | ({"without": None} if name in OPTIONAL else {})
            found |= {f"{name}, {what}": call.but(**{name: one}) for what, one in others.items()}
            found[f"{name}, far"] = replace(call.but(**{name: tensor.clone()}), far=(name,))
    return found


def changes_of_place(call: Call) -> dict[str, Call]:
    """Other streams, captures and devices."""
    return {
        "another stream": replace(call, stream=7),
        "a capture": replace(call, capture=3),
        "a capture on another stream": replace(call, stream=7, capture=3),
        "another device": replace(call, device=1),
        "all far": replace(call, device=1, far=tuple(name for name, one in call.arguments.items() if isinstance(one, torch.Tensor))),
    }
