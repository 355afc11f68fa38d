"""The engines' call sequences on a simulated GPU, and what the adapters replace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from simulated_deep_gemm import OneRank, simulated_hopper, visible

from engines import ENGINES, Inputs3, call_sequence, fake_packages, others_call
from megamoe_dsl.cases import Case, random_weights
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.compat.engines import fused_calls, vllm
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, quantize_e4m3_f32
from simulated_gpu import SimulatedKernel

PROBLEM = Problem(256, 128, 4, 2, max_tokens_per_rank=16, recipe="fp8xfp8", activation_clamp=10.0)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def gpu(kernels: Path) -> Iterator[type[SimulatedKernel]]:
    with pytest.MonkeyPatch.context() as patch, simulated_hopper(patch, kernels) as found:
        fake_packages(patch, lambda: [3, 8])
        yield found


def inputs(tokens: int, seed: int) -> Inputs3:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, PROBLEM.hidden, generator=generator).bfloat16()
    idx = torch.rand(tokens, PROBLEM.num_experts, generator=generator).topk(PROBLEM.topk).indices
    return x, idx, torch.rand(tokens, PROBLEM.topk, generator=generator)


@pytest.mark.parametrize("engine", ["vllm"])
def test_the_engines_calls(engine: str, gpu: type[SimulatedKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ENGINES[engine]
    for one in ENGINES.values():
        monkeypatch.setattr(one, "buffers", {})
    swap, group = kind.install(), OneRank()
    weights = [random_weights(PROBLEM, 0, seed) for seed in (1, 2)]
    layers = [kind(PROBLEM, group, one) for one in weights]
    watch_tensors(gpu, monkeypatch)

    def check(index: int, given: Inputs3, y: torch.Tensor) -> None:
        x, idx, topk_weights = given
        assert y.shape == x.shape
        case = Case(PROBLEM, *([one] for one in (*quantize_e4m3_f32(x), idx, topk_weights)), [weights[index]], exact=False)
        assert ((y.double() - case.reference().y[0].double()).abs() <= case.bound()[0]).all()

    def capture(step: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], Callable[[], None]]:
        outputs: list[torch.Tensor] = []

        def replay() -> None:
            with monkeypatch.context() as patch:  # what may not be captured fails here
                patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
                for target, source in zip(outputs, found := step(), strict=False):
                    target.copy_(source)
                outputs.extend(found[len(outputs) :])

        replay()
        return outputs, replay

    def reload() -> ExpertWeights:
        weights[0] = random_weights(PROBLEM, 0, 3)
        return weights[0]

    call_sequence(layers, lambda size: inputs(size, 100), inputs, check, capture, reload, idle=True)
    assert len(kind.buffers) == 1
    bounds = {config.problem.max_tokens_per_rank for config in gpu.launched}  # type: ignore[attr-defined]
    assert bounds == {PROBLEM.max_tokens_per_rank}
    swap.undo()
    assert sys.modules["deep_gemm"].fp8_mega_moe is others_call


def watch_tensors(gpu: type[SimulatedKernel], patch: pytest.MonkeyPatch) -> None:
    """Kernels see the buffers of both engines, and the tensors that the calls get."""
    launch, tensors = SimulatedKernel.launch, dict[str, torch.Tensor]()

    def seen(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object, **options: object) -> None:
            tensors.update({f"{name}.{i}": one for i, one in enumerate(arguments[:3]) if isinstance(one, torch.Tensor)})
            call(*arguments, **options)

        return run

    def run(kernel: SimulatedKernel) -> None:
        gpu.tensors = dict(tensors)
        for number, buffer in enumerate(one for kind in ENGINES.values() for one in kind.buffers.values()):
            gpu.tensors |= {f"{number}.{name}": tensor for name, tensor in visible(buffer).items()}
        launch(kernel)

    patch.setattr(SimulatedKernel, "launch", run)
    long = torch.Tensor.long

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        tensors["long"] = long(tensor)
        return tensors["long"]

    patch.setattr(torch.Tensor, "long", kept)
    module = sys.modules["deep_gemm"]
    for name in ("fp8_mega_moe", "fp8_mega_moe_sm90", "mega_moe_pre_dispatch_sm90"):
        if hasattr(module, name):
            patch.setattr(module, name, seen(name, getattr(module, name)))


def test_what_is_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = fake_packages(monkeypatch, list)
    before = {name: dict(vars(module)) for name, module in modules.items()}
    swap = vllm.install()
    ours = modules["deep_gemm"]
    assert ours.fp8_mega_moe is not others_call and ours.get_symm_buffer_for_mega_moe is not others_call
    assert ours.fp8_gemm_nt is others_call and not hasattr(ours, "set_num_sms")
    assert modules[vllm.DEEP_GEMM]._fp8_fp4_mega_moe_impl is not others_call
    swap.undo()
    assert {name: dict(vars(module)) for name, module in modules.items()} == before


def test_a_limit_of_waits_comes_from_who_installs(gpu: type[SimulatedKernel]) -> None:
    shape = (PROBLEM.num_experts, 16, PROBLEM.topk, PROBLEM.hidden, PROBLEM.intermediate)
    swap = vllm.install(watchdog_ns=7 * 10**9)
    buffer = sys.modules["deep_gemm"].get_symm_buffer_for_mega_moe(OneRank(), *shape)
    swap.undo()
    assert buffer.watchdog_ns == 7 * 10**9
    with pytest.raises(ProblemError, match=r"watchdog_ns = 0: must be a whole number of nanoseconds"):
        vllm.install(watchdog_ns=0)


def test_vllm_reads_its_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(vllm, "install", lambda watchdog_ns: found.append(watchdog_ns))
    monkeypatch.setenv("MEGAMOE_VLLM", "1")
    vllm.register()
    for text in ("135", "0.5"):
        monkeypatch.setenv("MEGAMOE_WATCHDOG_S", text)
        vllm.register()
    assert found == [60 * 10**9, 135 * 10**9, 5 * 10**8]
    for text in ("", "0", "-1", "nan", "inf", "1e99", "soon"):
        monkeypatch.setenv("MEGAMOE_WATCHDOG_S", text)
        with pytest.raises(ProblemError, match=r"MEGAMOE_WATCHDOG_S = .*: must be seconds, more than 0"):
            vllm.register()


def test_bounds_come_from_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = [3, 12]
    modules = fake_packages(monkeypatch, lambda: counts)
    assert (vllm.num_tokens_bound(5), vllm.num_tokens_bound(20)) == (12, 20)
    modules[vllm.CONTEXT].is_forward_context_available = lambda: False  # type: ignore[attr-defined]
    assert vllm.num_tokens_bound(5) == 5


@pytest.mark.parametrize(("rows", "given", "want"), [(5, None, 12), (14, None, 14), (5, 7, 7), (16, None, 16)])
def test_a_bound_fits_the_buffer(rows: int, given: int | None, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fp8_mega_moe(*_: object, num_tokens_bound: int) -> None:
        asked.append(num_tokens_bound)

    monkeypatch.setattr(deep_gemm, "fp8_mega_moe", fp8_mega_moe)
    call = fused_calls.fused_calls(lambda rows: 12 if rows < 16 else 99)["fp8_mega_moe"]
    call(
        torch.empty(rows, 8),
        None,
        None,
        SimpleNamespace(num_max_tokens_per_rank=16),
        **({} if given is None else {"num_tokens_bound": given}),
    )
    assert asked == [want]


def test_vllms_plugin_waits_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = fake_packages(monkeypatch, list)
    monkeypatch.delenv(vllm.VARIABLE, raising=False)
    vllm.register()
    assert modules["deep_gemm"].fp8_mega_moe is others_call
    monkeypatch.setenv(vllm.VARIABLE, "1")
    vllm.register()
    assert modules["deep_gemm"].fp8_mega_moe is not others_call
    modules[vllm.DEEP_GEMM]._import_deep_gemm = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError, match="vLLM finds no deep_gemm"):
        vllm.install()
