"""torch.cuda on CPU tensors: the device "cuda" is host memory, moves between devices copy, and every tensor says it is on the GPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from megamoe_dsl.sim.host.arrays import claim_cuda

GPU = torch.device("cuda", 0)
Show = Callable[[int, int, Callable[[], bool]], None]
_ALIGNMENT = 512  # of allocations on a GPU
_MAKERS = {
    getattr(torch, name)
    for name in (
        *("arange", "empty", "empty_like", "empty_strided", "full", "full_like", "linspace", "ones", "ones_like", "rand", "rand_like"),
        *("randint", "randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like"),
    )
}
_PRODUCTS = {torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.matmul}
"""What takes `out_dtype` on a GPU only."""
_MOVES = {torch.Tensor.cuda, torch.Tensor.cpu}
_ADDRESSES = {torch.Tensor.data_ptr}


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "meta"))


def _on_host(value: Any) -> Any:
    """The device of host memory in place of a GPU."""
    return torch.device("cpu") if _is_device(value) and torch.device(value).type == "cuda" else value


class OnHost(TorchFunctionMode):
    """Torch functions with "cuda" replaced; `show` and `use` are told of every tensor whose address is asked for, `look` of every call."""

    def __init__(self, show: Show, look: Callable[[], None], use: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.show, self.look, self.use = show, look, use

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        self.look()
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.device:
            return function(*args, **kwargs)  # it has no memory; where it is used, it is replaced
        if function in _MOVES:
            moved = _aligned(args[0].clone())
            show_storage(moved, self.show)
            return moved
        if function in _ADDRESSES:
            show_storage(args[0], self.show)
            self.use(args[0])
        if "out_dtype" in kwargs and function in _PRODUCTS:
            wide = kwargs.pop("out_dtype")
            args = tuple(one.to(wide) if isinstance(one, torch.Tensor) else one for one in args)
        moves = function is torch.Tensor.to and (_is_device(kwargs.get("device")) or any(map(_is_device, args[1:])))
        result = function(*map(_on_host, args), **{name: _on_host(value) for name, value in kwargs.items() if name != "pin_memory"})
        if moves and result is args[0]:
            result = result.clone()
        if moves or function in _MAKERS or function is torch.Tensor.clone:
            show_storage(_aligned(result), self.show)
        return result


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with memory of its own, at an address as a GPU's allocator gives them."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        size, element = tensor.untyped_storage().nbytes(), tensor.element_size()
        if tensor.data_ptr() % _ALIGNMENT and size:
            storage = torch.empty(size + _ALIGNMENT, dtype=torch.uint8).untyped_storage()
            start = -storage.data_ptr() % _ALIGNMENT
            ctypes.memmove(storage.data_ptr() + start, tensor.untyped_storage().data_ptr(), size)
            tensor.set_(storage, start // element + tensor.storage_offset(), tensor.shape, tensor.stride())
    return tensor


def show_storage(tensor: torch.Tensor, show: Show) -> None:
    """Make all memory of a tensor's storage visible, as long as it lives."""
    with torch._C.DisableTorchFunction():
        storage = tensor.untyped_storage()
        show(storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage).expired)


def install(
    show: Show,
    capability: tuple[int, int],
    num_sms: int,
    look: Callable[[], None] = _nothing,
    use: Callable[[torch.Tensor], None] = _nothing,
) -> None:
    """Put the stand-in in place, for the rest of the process; `look` is called before every function of torch, `use` with every tensor
    whose address is asked for."""

    def mode() -> OnHost:
        return OnHost(show, look, use)

    def to_dlpack(self: torch.Tensor, **_: Any) -> Any:
        show_storage(self, show)
        with torch._C.DisableTorchFunction():
            return claim_cuda(torch._C._to_dlpack(self.detach()))

    torch.Tensor.__dlpack__ = to_dlpack  # type: ignore[method-assign, assignment]
    torch.Tensor.__dlpack_device__ = lambda self: (2, 0)  # type: ignore[method-assign, assignment, return-value]
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        del torch.Tensor.__dlpack_c_exchange_api__

    class Stream:
        cuda_stream, device, device_index = 0, GPU, 0

        def __init__(self, *_: Any, **__: Any) -> None:
            self.synchronize = self.wait_stream = self.wait_event = self.record_event = _nothing

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

    class Event(Stream):
        cuda_event = 1

        def elapsed_time(self, _: Any) -> float:
            return 1.0

        record = query = wait = _nothing

    class Graph(Stream):
        """What is captured runs at once; a replay does nothing."""

        capture_begin = capture_end = replay = reset = _nothing

    class Profile(Stream):
        """Sees no kernel of a GPU."""

        def key_averages(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(table=lambda **_: "")

    torch.profiler.profile = Profile  # type: ignore[assignment, misc]
    properties = SimpleNamespace(
        multi_processor_count=num_sms,
        major=capability[0],
        minor=capability[1],
        name="simulated",
        total_memory=1 << 34,
        L2_cache_size=1 << 20,
        shared_memory_per_block_optin=232448,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        regs_per_multiprocessor=65536,
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_name": "simulated",
        "get_device_properties": properties,
        "current_stream": Stream(),
        "default_stream": Stream(),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "is_current_stream_capturing": False,
        **dict.fromkeys(("init", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "set_device", "reset_peak_memory_stats")),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": Stream,
        "stream": Stream,
        "device": Stream,
        "device_of": Stream,
    }.items():
        setattr(torch.cuda, name, value)

    class Generator(torch.Generator):
        def __new__(cls, device: object = None) -> Generator:
            return super().__new__(cls)

    torch.Generator = Generator  # type: ignore[misc]
    custom_op = torch.library.custom_op

    def define(name: str, function: Any = None, /, *, device_types: object = None, **options: Any) -> Any:
        """An operator for every device."""
        if function is None:
            return lambda given: define(name, given, **options)
        operator = custom_op(name, function, **options)
        operator.register_kernel("cpu", _within(function, mode))
        return operator

    torch.library.custom_op = define  # type: ignore[assignment]
    torch.Tensor.record_stream = _nothing  # type: ignore[method-assign]
    threading.Thread.run = _within(threading.Thread.run, mode)  # type: ignore[method-assign]
    torch.autograd._engine_run_backward = _within(torch.autograd._engine_run_backward, mode)  # type: ignore[attr-defined]
    mode().__enter__()


def _within(function: Callable[..., Any], mode: Callable[[], OnHost]) -> Callable[..., Any]:
    """A function that is called with all modes of torch off, on the stand-in all the same."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return function(*args, **kwargs)

    return run
