"""The layer as torch operators, so that torch.compile and torch.export treat a call as one node.

An operator's arguments are tensors and numbers, so a number names the layer.  All ranks must make the same calls in the same order.  The
operators therefore declare that they change `order`, a tensor that layers on a symmetric buffer share: a compiler then neither drops,
merges nor moves calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import torch

from ..problem import ProblemError

P = ParamSpec("P")
R = TypeVar("R")


_LAYERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Layers by number, with a method `launch(tensors, num_tokens_bound, out)`."""
_NUMBERS = count()


def register(layer: Any) -> int:
    """A number that stands for the layer in operator calls."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


def layer_of(number: int) -> Any:
    """Raises LookupError when the layer is gone."""
    if number not in _LAYERS:
        raise LookupError(f"layer {number} of a mega_moe operator no longer exists")
    return _LAYERS[number]


def new_output(x: torch.Tensor, hidden: int) -> torch.Tensor:
    """Uninitialized y, bf16 [tokens, hidden], for x, whose rows may be packed."""
    return torch.empty((x.shape[0], hidden), dtype=torch.bfloat16, device=x.device)


def is_plain_call(x: torch.Tensor, traces: bool = False) -> bool:
    """Whether a call may skip its operator, which takes host time: no compiler, tracer, mode or tensor subclass is involved, and no
    autograd unless the call `traces` its gradient itself."""
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and (traces or not (x.requires_grad and torch.is_grad_enabled()))


def takes_tensors(*names: str, optional: tuple[str, ...] = (), **called: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function raise `ProblemError` for an argument of `names` that is no tensor, or of `optional` that is neither a tensor nor
    None.  Arguments are checked only after an AttributeError, TypeError or RuntimeError, which costs good calls nothing.  `called` maps
    names in errors of called functions to this function's own."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except ProblemError as error:
                first, dot, rest = error.field.partition(".")
                if first not in called:
                    raise
                raise ProblemError(called[first] + dot + rest, error.value, error.allowed) from None
            except (AttributeError, TypeError, RuntimeError):
                given = dict(zip(inspect.signature(function).parameters, args, strict=False)) | kwargs
                for name in (*names, *optional):
                    value = given.get(name)
                    if name in given and not isinstance(value, torch.Tensor) and (name in names or value is not None):
                        raise ProblemError(name, value, "a tensor" if name in names else "a tensor or None") from None
                raise

        return call

    return decorate


def asks_for_gradients(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether autograd follows one of them."""
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def check_no_gradient(names: Sequence[str], tensors: Sequence[torch.Tensor | None]) -> None:
    """Raises `ProblemError` for a tensor that requires grad: the call has no backward pass for it."""
    if torch.is_grad_enabled():
        for name, tensor in zip(names, tensors, strict=True):
            if tensor is not None and tensor.requires_grad:
                raise ProblemError(f"{name}.requires_grad", True, "False, or the call under torch.no_grad(): it has no backward pass")


def _mega_moe(*given: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    *tensors, _, layer, bound = given
    return layer_of(layer).launch(tuple(tensors), bound, out)


def _mega_moe_fake(x: torch.Tensor, *others: Any) -> torch.Tensor:
    *_, layer, _ = others
    return new_output(x, layer_of(layer).problem.hidden)


def _mega_moe_out(y: torch.Tensor, *given: Any) -> None:
    _mega_moe(*given, out=y)


# A library instead of `torch.library.custom_op`, whose Python wrappers take longer than the launch.
_LIBRARY = torch.library.Library("megamoe_dsl", "DEF")
_CALL = "Tensor x, Tensor? x_sf, Tensor topk_idx, Tensor topk_weights, Tensor(o!) order, int layer, SymInt num_tokens_bound"


def define(name: str, schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """An operator `megamoe_dsl::name`; `fake` makes an uninitialized result."""
    _LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"megamoe_dsl::{name}", fake, lib=_LIBRARY)
    operator: Callable[..., Any] = getattr(torch.ops.megamoe_dsl, name).default
    return operator


def define_stage(
    name: str, on_gpu: Callable[..., Any], on_cpu: Callable[..., Any], fake: Callable[..., Any], writes: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """An operator that runs `on_gpu` with GPU tensors and `on_cpu` with CPU tensors; both take the arguments that the annotations of
    `on_gpu` list, of which it writes to `writes`.  A plain call (`is_plain_call`) leaves out the operator."""

    def run(*given: Any) -> Any:
        return (on_cpu if given[0].device.type == "cpu" else on_gpu)(*given)

    operator = define(name, torch.library.infer_schema(on_gpu, mutates_args=writes), run, fake)
    return lambda *given: (run if is_plain_call(given[0]) else operator)(*given)


def differentiate(operator: Callable[..., Any], backward: Callable[..., Any], keep: Callable[..., None]) -> Callable[..., Any]:
    """Registers a backward pass; `keep` saves what it needs in its context."""
    torch.library.register_autograd(operator, backward, setup_context=keep, lib=_LIBRARY)  # type: ignore[arg-type]
    return operator


mega_moe = define("mega_moe", f"({_CALL}) -> Tensor", _mega_moe, _mega_moe_fake)
"""y, bf16 [T, hidden].  Without x_sf, x is bf16 and quantized first.  A negative bound stands for None."""

mega_moe_out = define("mega_moe_out", f"(Tensor(y!) y, {_CALL}) -> ()", _mega_moe_out, lambda *given: None)
