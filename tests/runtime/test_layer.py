"""The layer on a simulated GPU: results, selection, validation, operators."""

import gc
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from megamoe_dsl.arch import SM90
from megamoe_dsl.artifact import store as artifact_store
from megamoe_dsl.artifact.store import ArtifactError, ArtifactStore
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.json_file import FOLDER_VARIABLE
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import quantize_e4m3_f32
from megamoe_dsl.runtime import inputs_stage, rank_kernel
from megamoe_dsl.runtime.custom_op import is_plain_call, layer_of
from megamoe_dsl.runtime.layer import MegaMoE, mega_moe
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from simulated_gpu import NUM_SMS, SimulatedKernel, values_of, visible
from sweep import sample

PROBLEM = Problem(512, 256, 4, 2, max_tokens_per_rank=64, recipe="fp8xfp8", activation_clamp=10.0)
TOKENS = 5


@pytest.fixture(scope="module")
def case() -> Case:
    return random_case(PROBLEM, [TOKENS], 0, mask=0.2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def moe(case: Case, gpu: type[SimulatedKernel], store: ArtifactStore) -> MegaMoE:
    symmetric = SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu")
    return MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=symmetric, bounds=(8,))


def arguments(case: Case) -> dict[str, torch.Tensor]:
    return {"x": case.x[0], "x_sf": case.x_sf[0], "topk_idx": case.topk_idx[0], "topk_weights": case.topk_weights[0]}


def test_quantized_inputs_give_the_references_bits(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
    gpu.tensors = visible(moe, y=y, **arguments(case))
    moe.stats.zero_()
    assert mega_moe(moe, **arguments(case), num_tokens_bound=8, out=y, check=True) is y
    want = case.reference()
    assert torch.equal(y, want.y[0])
    received = torch.stack([(case.topk_idx[0] == expert).sum() for expert in range(PROBLEM.num_experts)])
    assert torch.equal(moe.stats.long(), received)
    assert gpu.launched[-1] is moe.kernels[8].config


def test_a_folder_of_kernels_is_enough(
    moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `prepare` would compile is all that a layer loads, from a folder that the environment names, where no DSL can be imported."""
    target = Target(SM90, NUM_SMS, "simulated")
    assert MegaMoE.prepare(PROBLEM, bounds=(8,), target=target, store=store) == 0
    for name in [one for one in sys.modules if one == "cutlass" or one.startswith("cutlass.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cutlass", None)
    monkeypatch.setattr(artifact_store, "find_spec", lambda name: None)
    monkeypatch.setenv(FOLDER_VARIABLE, str(store.folder))
    layer = MegaMoE(PROBLEM, case.weights[0], symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), bounds=(8,))
    y = torch.empty(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16)
    gpu.tensors = visible(layer, y=y, **arguments(case))
    layer(**arguments(case), num_tokens_bound=8, out=y)
    assert torch.equal(y, case.reference().y[0])
    with pytest.raises(ArtifactError, match=f"{store.folder} has no kernel for it"):
        MegaMoE(PROBLEM, case.weights[0], symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), bounds=(8, 17))


def test_results_may_travel_in_eight_bits(case: Case, gpu: type[SimulatedKernel], store: ArtifactStore) -> None:
    problem = replace(PROBLEM, combine="e4m3")
    symmetric = SymmetricBuffer.allocate(problem, SM90, device="cpu")
    layer = MegaMoE(problem, case.weights[0], store=store, symmetric=symmetric, bounds=(8,))
    y = torch.full((TOKENS, PROBLEM.hidden), float("nan"), dtype=torch.bfloat16)
    gpu.tensors = visible(layer, y=y, **arguments(case))
    layer(**arguments(case), num_tokens_bound=8, out=y)
    want = replace(case, problem=problem).reference().y[0]
    assert torch.equal(y, want) and not torch.equal(y, case.reference().y[0])


def test_bf16_inputs_are_quantized_on_the_way(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    values = (case.x[0].float().view(TOKENS, -1, 128) * case.x_sf[0].unsqueeze(-1)).view(TOKENS, -1).bfloat16()
    y = torch.empty(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16)
    idx, weights = case.topk_idx[0], case.topk_weights[0]
    gpu.tensors = visible(moe, y=y, x=values, topk_idx=idx, topk_weights=weights)
    moe(values, idx, weights, out=y, num_tokens_bound=8)
    given = Case(PROBLEM, *([one] for one in (*quantize_e4m3_f32(values), idx, weights)), case.weights, exact=False)
    assert ((y.double() - given.reference().y[0].double()).abs() <= given.bound()[0]).all()


@sample("True")
@pytest.mark.parametrize("quantized", [False, True])
def test_indices_may_be_int32(
    moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, to_int64 = arguments(case), torch.Tensor.long
    if not quantized:
        given |= {"x": torch.ones(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16), "x_sf": None}

    def run(idx: torch.Tensor) -> torch.Tensor:
        y = torch.empty(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16)
        gpu.tensors = visible(moe, y=y, **{name: tensor for name, tensor in {**given, "topk_idx": idx}.items() if tensor is not None})
        return moe(**{**given, "topk_idx": idx}, out=y, num_tokens_bound=8)

    def visible_int64(idx: torch.Tensor) -> torch.Tensor:
        gpu.tensors["topk_idx"] = to_int64(idx)
        return gpu.tensors["topk_idx"]

    want = run(given["topk_idx"])
    monkeypatch.setattr(torch.Tensor, "long", visible_int64)
    assert torch.equal(run(given["topk_idx"].int()), want) and want.any()


def test_no_tokens_is_a_launch_too(moe: MegaMoE, gpu: type[SimulatedKernel]) -> None:
    gpu.tensors, before = visible(moe, nowhere=moe.kernels[8]._nowhere), len(gpu.launched)
    none = torch.empty(0, PROBLEM.hidden, dtype=torch.bfloat16)
    y = moe(none, torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2), num_tokens_bound=0)
    assert y.shape == none.shape and len(gpu.launched) == before + 1


def test_layers_share_a_buffer_and_kernels_share_weights(moe: MegaMoE, case: Case, store: ArtifactStore) -> None:
    other = MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=moe.symmetric, bf16_inputs=False)
    assert other.symmetric.sym is moe.symmetric.sym and other.memory.stats is not moe.memory.stats
    small, large = moe.kernels[8].buffers, moe.kernels[64].buffers
    assert small.weights is large.weights and small.stats is large.stats and small.watchdog is large.watchdog
    assert small.config != large.config
    with pytest.raises(ProblemError, match=r"num_sms = 2: must be 4, as in every other kernel on this symmetric buffer"):
        MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=moe.symmetric, bf16_inputs=False, reserved_sms=2)


@pytest.mark.parametrize("place", [inputs_stage, rank_kernel])
def test_a_layer_that_cannot_be_made_leaves_a_buffer_to_others(
    case: Case, gpu: type[SimulatedKernel], store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, place: ModuleType
) -> None:
    symmetric = SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu")

    def fail(*_: object) -> None:
        raise ArtifactError("no kernel")

    with monkeypatch.context() as patch, pytest.raises(ArtifactError):
        patch.setattr(place, "CudaKernel", fail)
        MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=symmetric)
    assert symmetric.num_sms == 0
    MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=symmetric, bf16_inputs=False, reserved_sms=2)
    assert symmetric.num_sms == 2


ONE_EXPERT = torch.tensor([[-1, -1], [-1, -1], [-1, 3], [-1, -1], [-1, -1]])
ALL_NAN = torch.full((5, 2), math.nan)  # those of masked slots are nobody's
BAD = [
    ({"x": torch.zeros(5, 512)}, r"x\.dtype"),
    ({"x": torch.zeros(512)}, r"x\.shape"),
    ({"x": torch.zeros(65, 512, dtype=torch.float8_e4m3fn)}, r"x\.shape\[0\] = 65"),
    ({"x_sf": torch.zeros(5, 16)}, r"x_sf\.shape"),
    ({"x_sf": None}, r"x\.dtype"),
    ({"topk_idx": torch.zeros(5, 2, dtype=torch.int16)}, r"topk_idx\.dtype = torch\.int16: must be torch\.int64 or torch\.int32"),
    ({"topk_idx": torch.zeros(2, 5, dtype=torch.int64).T}, r"topk_idx\.stride"),
    ({"topk_weights": torch.zeros(4, 2)}, r"topk_weights\.shape"),
    ({"out": torch.zeros(5, 512)}, r"^out\.dtype"),
    ({"out": torch.zeros(4, 512, dtype=torch.bfloat16)}, r"^out\.shape"),
    ({"out": torch.zeros(5 * 512 + 1, dtype=torch.bfloat16)[1:].view(5, 512)}, r"^out\.data_ptr"),
    ({"num_tokens_bound": 4}, r"num_tokens_bound = 4: must be between this rank's 5 tokens and max_tokens_"),
    ({"num_tokens_bound": 65}, r"num_tokens_bound = 65"),
    ({"num_tokens_bound": -5}, r"num_tokens_bound = -5: must be None"),
    ({"topk_idx": torch.zeros(5, dtype=torch.int64), "check": True}, r"topk_idx\.shape"),
    ({"topk_idx": torch.full((5, 2), 4), "check": True}, r"topk_idx, token 0, slot 0 = 4: must be -1 \(masked\) or 0..3"),
    ({"topk_idx": torch.full((5, 2), 0), "check": True}, r"topk_idx, token 0, slot 1 = 0: must be an expert not named earlier in the row"),
    ({"num_tokens_bound": 8.0}, r"num_tokens_bound = 8\.0: must be None, or at least"),
    ({"num_tokens_bound": True}, r"num_tokens_bound = True: must be None, or at least"),
    ({"x": torch.full((5, 512), math.nan).to(torch.float8_e4m3fn), "check": True}, r"x\[0, 0\] = nan: must be finite"),
    ({"x": torch.full((5, 512), math.inf).bfloat16(), "x_sf": None, "check": True}, r"x\[0, 0\] = inf: must be finite"),
    ({"x_sf": torch.tensor([1, 1, 1, math.inf]).repeat(5, 1), "check": True}, r"x_sf\[0, 3\] = inf: must be finite"),
    ({"topk_idx": ONE_EXPERT, "topk_weights": ALL_NAN, "check": True}, r"topk_weights\[2, 1\] = nan: must be finite"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments_launch_nothing(
    moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], change: dict[str, object], message: str
) -> None:
    before = len(gpu.launched)
    with pytest.raises(ProblemError, match=message):
        moe(**{**arguments(case), **change})
    assert len(gpu.launched) == before


def test_a_layer_without_the_bf16_kernel_says_so(case: Case, gpu: type[SimulatedKernel], store: ArtifactStore) -> None:
    moe = MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), bf16_inputs=False)
    with pytest.raises(ProblemError, match="bf16_inputs=False"):
        moe(torch.zeros(5, 512, dtype=torch.bfloat16), case.topk_idx[0], case.topk_weights[0])


@pytest.mark.parametrize("limit", [0, -1, 1e9, "5", True, 1 << 63])
def test_a_watchdog_that_could_not_wait_is_refused(case: Case, gpu: type[SimulatedKernel], store: ArtifactStore, limit: object) -> None:
    with pytest.raises(ProblemError, match=r"watchdog_ns = .*: must be a whole number of nanoseconds"):
        MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=SymmetricBuffer.allocate(PROBLEM, SM90, device="cpu"), watchdog_ns=limit)


def test_weights_elsewhere_are_refused(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], store: ArtifactStore) -> None:
    away = replace(case.weights[0], fc1_sf=case.weights[0].fc1_sf.to("meta"))
    with pytest.raises(ProblemError, match=r"weights\.fc1_sf\.device = .*meta.*: must be cpu, where weights\.fc1 is"):
        moe.load_weights(away)
    gone = case.weights[0].map(lambda tensor: tensor.to("meta"))
    with pytest.raises(ProblemError, match=r"weights\.device = .*meta.*: must be cpu, where the symmetric buffer is"):
        MegaMoE(PROBLEM, gone, store=store, symmetric=moe.symmetric)
    with pytest.raises(ProblemError, match="weights = 'tuple': must be an ExpertWeights"):
        moe.load_weights(tuple(away.__dict__.values()))


def test_another_problems_buffer_is_refused(case: Case, gpu: type[SimulatedKernel], store: ArtifactStore) -> None:
    smaller = Problem(512, 256, 4, 2, max_tokens_per_rank=32, recipe="fp8xfp8", activation_clamp=10.0)
    with pytest.raises(ProblemError, match=r"symmetric\.problem"):
        MegaMoE(PROBLEM, case.weights[0], store=store, symmetric=SymmetricBuffer.allocate(smaller, SM90, device="cpu"))


def test_what_lies_in_the_buffer_is_not_copied(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    places = moe.input_buffers()
    given = {name: getattr(places, name)[:TOKENS] for name in arguments(case)}
    for name, tensor in arguments(case).items():
        given[name].copy_(tensor)
    y = torch.empty(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16)
    gpu.tensors, before = visible(moe, y=y), len(gpu.launched)
    moe(**given, num_tokens_bound=8, out=y)
    assert gpu.launched[before:] == [moe.kernels[8].config]
    assert torch.equal(y, case.reference().y[0])
    gpu.tensors["topk_idx"] = case.topk_idx[0]
    moe(**{**given, "topk_idx": case.topk_idx[0]}, num_tokens_bound=8, out=y)
    assert len(gpu.launched) == before + 3, "what lies elsewhere is brought by a launch"


def test_a_call_without_the_operator_is_checked_as_often_as_its_layout_changes(
    moe: MegaMoE, case: Case, gpu: type[SimulatedKernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    check = moe._inputs.check
    monkeypatch.setattr(moe._inputs, "check", lambda *tensors: (checked.append(tensors), check(*tensors)))
    monkeypatch.setattr(gpu, "launch", lambda kernel: None)
    moe._plans.clear()
    given = arguments(case)
    for _ in range(3):
        moe(**given)
    assert len(checked) == 1
    moe(**{name: tensor[:2] for name, tensor in given.items()})
    assert len(checked) == 2
    odd = torch.zeros(TOKENS * PROBLEM.hidden + 4, dtype=torch.uint8)[4:].view(torch.float8_e4m3fn).view(TOKENS, -1)
    with pytest.raises(ProblemError, match=r"x\.data_ptr\(\) = \d+: must be a multiple of 16"):
        moe(**{**given, "x": odd})


def test_a_call_is_an_operator_where_somebody_looks(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, function: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))  # type: ignore[operator]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "launch", lambda kernel: None)
        moe(**arguments(case))
        with Looking():
            moe(**arguments(case))
    assert [name for name in seen if "mega_moe" in name] == ["megamoe_dsl.mega_moe.default"]
    assert is_plain_call(case.x[0]) and not is_plain_call(torch.nn.Parameter(case.x_sf[0]))
    assert not is_plain_call(torch.zeros(1, requires_grad=True))
    with torch.no_grad():
        assert is_plain_call(torch.zeros(1, requires_grad=True))


@pytest.mark.parametrize("name", ["x", "topk_weights"])
def test_there_is_no_gradient(name: str, moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    given, launched = arguments(case), len(gpu.launched)
    given[name] = given[name].float().clone().requires_grad_()
    with pytest.raises(ProblemError, match=rf"^{name}\.requires_grad = True: must be False, or the call under torch.no_grad\(\)"):
        moe(**given)
    assert len(gpu.launched) == launched


def test_torch_compile_sees_one_operator(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    y = torch.empty(TOKENS, PROBLEM.hidden, dtype=torch.bfloat16)
    gpu.tensors = visible(moe, y=y, **arguments(case))

    def step(out: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return moe(**given, out=out, num_tokens_bound=8) * 2

    doubled = torch.compile(step, backend=backend, fullgraph=True)(y, arguments(case))
    assert torch.equal(doubled, case.reference().y[0] * 2)
    assert len(graphs) == 1
    assert sum("mega_moe" in str(node.target) for node in graphs[0].graph.nodes) == 1


def test_torch_compile_makes_every_call(moe: MegaMoE, case: Case, gpu: type[SimulatedKernel]) -> None:
    """The other ranks wait for a call whose result nobody uses, and for both of two equal ones."""
    given = arguments(case)

    def step() -> torch.Tensor:
        moe(**given)
        return moe(**given) + moe(**given)

    launches = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "launch", lambda kernel: launches.append(values_of(kernel.arguments)))
        torch.compile(step, backend="aot_eager", fullgraph=True)()
    assert len(launches) == 6, "two kernels a call"


def test_an_operator_outlives_no_layer(moe: MegaMoE, case: Case, store: ArtifactStore) -> None:
    """Nor does what names layers keep their memory."""
    other = MegaMoE(PROBLEM, store=store, symmetric=moe.symmetric, bounds=(8,))
    number = other.number
    del other
    gc.collect()
    with pytest.raises(LookupError, match=f"layer {number} of a mega_moe operator no longer exists"):
        layer_of(number)
    with pytest.raises(LookupError, match=f"layer {moe.number + 999} of a mega_moe operator no longer exists"):
        torch.ops.megamoe_dsl.mega_moe(*arguments(case).values(), moe.symmetric.order, moe.number + 999, -1)


def test_fake_operator_has_the_shape_and_type_of_y(moe: MegaMoE) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(7, PROBLEM.hidden, dtype=torch.bfloat16)
        idx, weights, order = torch.empty(7, 2, dtype=torch.int64), torch.empty(7, 2), torch.empty(1, dtype=torch.int32)
        y = torch.ops.megamoe_dsl.mega_moe(x, None, idx, weights, order, moe.number, -1)
        assert y.shape == (7, PROBLEM.hidden) and y.dtype == torch.bfloat16
        assert torch.ops.megamoe_dsl.mega_moe_out(y, x, None, idx, weights, order, moe.number, -1) is None


def test_compiled_kernels_are_kept(store: ArtifactStore, moe: MegaMoE) -> None:
    for kernel in moe.kernels.values():
        assert store.path(kernel.config).exists()
    assert Path(store.folder).is_dir()
