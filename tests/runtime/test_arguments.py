"""What a layer takes and refuses, before it does anything: kinds of arguments, missing devices, NaN and infinities, other dtypes."""

from dataclasses import replace

import pytest
import torch

from megamoe_dsl import Target, choose
from megamoe_dsl.artifact.artifact import Artifact
from megamoe_dsl.cases import Case, random_case, random_weights
from megamoe_dsl.kernels.moe.inputs_config import PreDispatchConfig
from megamoe_dsl.kernels.moe.unfused.family import stage_configs
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, weight_names
from megamoe_dsl.reference import LayerInputs, mega_moe_stages
from megamoe_dsl.runtime.buffers import Inputs, check_weights
from megamoe_dsl.runtime.ep import simulated as ep_simulated
from megamoe_dsl.runtime.ep.buffers import RowActivations
from megamoe_dsl.runtime.ep.routing import scatter_indices
from megamoe_dsl.runtime.ep.simulated import SimulatedEp
from megamoe_dsl.runtime.layer import MegaMoE
from megamoe_dsl.runtime.simulated import SimulatedMoE, memory_of
from megamoe_dsl.sim import SimError
from ptx_of import artifact
from sweep import sample

PROBLEMS = {recipe: Problem(256, 128, 4, 2, max_tokens_per_rank=8, recipe=recipe) for recipe in ("fp8xfp4", "fp8xfp8")}
CONFIGS = {
    "fp8xfp4": choose(PROBLEMS["fp8xfp4"], Target.typical("sm_100a", 2), 8),
    "fp8xfp8": choose(PROBLEMS["fp8xfp8"], Target.typical("sm_90a", 2), 8),
}
TOKENS = 5
HALVES = ("dispatch_grouped", ""), ("grouped", "_combine")
NAN = {torch.uint8: 0xFF, torch.float8_e4m3fn: 0x7F}  # the others take a float


@pytest.fixture(params=PROBLEMS)
def case(request: pytest.FixtureRequest) -> Case:
    return random_case(PROBLEMS[request.param], [TOKENS], 0)


def inputs(case: Case, **changes: torch.Tensor) -> Inputs:
    return replace(Inputs(case.x[0], case.x_sf[0], case.topk_idx[0], case.topk_weights[0]), **changes)


def with_nan(values: torch.Tensor, *place: int) -> torch.Tensor:
    changed = values.clone()
    if values.dtype in NAN:
        changed.view(torch.uint8)[place] = NAN[values.dtype]
    else:
        changed[place] = float("nan")
    return changed


def test_a_configuration_is_no_artifact(case: Case) -> None:
    config = CONFIGS[case.problem.recipe]
    with pytest.raises(ProblemError, match=f"artifact = '{type(config).__name__}': must be an Artifact of a MoE kernel"):
        SimulatedMoE(config, case.weights)  # type: ignore[arg-type]
    other = Artifact(PreDispatchConfig(case.problem, 2, config.arch.name), "", b"", 0.0)
    with pytest.raises(ProblemError, match="artifact = 'PreDispatchConfig'"):
        SimulatedMoE(other, case.weights)
    with pytest.raises(ProblemError, match=r"seed = 0\.5: must be an integer"):
        SimulatedMoE(Artifact(config, "", b"", 0.0), case.weights, seed=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (1, r"device = 'cuda': must be a CUDA device, and torch finds none"),
        (2, r"group = None: must be a process group of num_ranks = 2 ranks, and there is none"),
    ],
)
def test_a_layer_without_a_gpu_or_a_group_says_so(ranks: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    problem = Problem(256, 128, 4, 2, num_ranks=ranks, max_tokens_per_rank=8, recipe="fp8xfp8")
    with pytest.raises(ProblemError, match=message):
        MegaMoE(problem, random_case(problem, [1] * ranks, 0).weights[0])


@pytest.mark.parametrize("name", ["x", "x_sf", "topk_weights"])
def test_nan_in_inputs_is_refused_and_named(name: str, case: Case) -> None:
    one = inputs(case)
    bad = replace(one, **{name: with_nan(getattr(one, name), 3, 1)})
    with pytest.raises(ProblemError, match=rf"^rank 0: {name}\[3, 1\] = (nan|255\.0): must be (finite|a UE8M0 byte below 255)"):
        bad.check(case.problem, torch.device("cpu"), "rank 0: ")
    one.check(case.problem, torch.device("cpu"))


def test_an_infinite_weight_is_refused_unless_its_slot_is_masked(case: Case) -> None:
    weights = case.topk_weights[0].clone()
    weights[2, 0] = float("inf")
    with pytest.raises(ProblemError, match=r"topk_weights\[2, 0\] = inf: must be finite"):
        inputs(case, topk_weights=weights).check(case.problem, torch.device("cpu"))
    masked = case.topk_idx[0].clone()
    masked[2, 0] = -1
    inputs(case, topk_weights=weights, topk_idx=masked).check(case.problem, torch.device("cpu"))


def test_nan_among_weights_is_looked_for_when_asked(case: Case) -> None:
    good = case.weights[0]
    check_weights(case.problem, good, finite=True)
    names = ("fc1_sf", "fc2_sf") if case.problem.recipe == "fp8xfp4" else ("fc1", "fc1_sf", "fc2", "fc2_sf")
    for name in names:
        bad = replace(good, **{name: with_nan(getattr(good, name), 1, 0, 0)})
        check_weights(case.problem, bad)
        with pytest.raises(ProblemError, match=rf"weights\.{name}\[1, 0, 0\] = (nan|255\.0): must be"):
            check_weights(case.problem, bad, finite=True)


def simulated(case: Case) -> SimulatedMoE:
    """Of stages that nobody compiles."""
    return SimulatedMoE([Artifact(one, "", b"", 0.0) for one in stage_configs(CONFIGS[case.problem.recipe])], case.weights)


def test_what_a_launch_may_read_and_write(case: Case) -> None:
    """y and what stages leave for one another are nothing before a stage has written them; peers, maps and weights stay as they are."""
    moe, y = simulated(case), torch.ones(TOKENS, 256, dtype=torch.bfloat16)
    memory, (rank,) = moe.visible([y]), moe.ranks
    for tensor in (y, moe.results[0]):
        with pytest.raises(SimError, match="uninitialized"):
            memory.read(tensor.data_ptr(), 2)
    weights = [getattr(rank.weights, name) for name in weight_names(case.problem)]
    for tensor in (moe.peers, *(one.maps for (one,) in moe.buffers), *(one for one in weights if one.numel())):
        with pytest.raises(SimError, match="read-only"):
            memory.writable(tensor.data_ptr(), 2)
    for tensor in (rank.sym, rank.stats, rank.watchdog, y, moe.results[0]):
        assert memory.writable(tensor.data_ptr(), 2)
    assert len(memory.read(rank.sym.data_ptr(), 2)) == 2


def test_what_launches_of_halves_may_read_and_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is refused before one."""
    problem = replace(PROBLEMS["fp8xfp8"], num_ranks=2)
    case, target = random_case(problem, [3, 2], 0), Target.typical("sm_90a", 4)
    kernels = [Artifact(find_kernel(f"{name}_gemm{rest}").choose(problem, target, 8), "", b"", 0.0) for name, rest in HALVES]
    halves = SimulatedEp(*kernels, case.weights)
    monkeypatch.setattr(ep_simulated, "simulated_launch", lambda *_: None)
    monkeypatch.setattr(halves.simulator, "run", lambda launches: halves.simulator.memory)
    given = [Inputs(*one) for one in zip(case.x, case.x_sf, case.topk_idx, case.topk_weights, strict=True)]
    rows, first = halves.dispatch(given)
    acts = [RowActivations.empty(problem, "cpu") for _ in rows]
    y, second = halves.combine(acts, [3, 2])
    for memory, made, read in ((first, rows, []), (second, y, [one.values for one in acts])):
        for tensor in made:
            with pytest.raises(SimError, match="uninitialized"):
                memory.read(tensor.data_ptr(), 2)
        for tensor in (halves.peers, *read, *(getattr(one, name) for one in case.weights for name in ("fc1", "fc2"))):
            with pytest.raises(SimError, match="read-only"):
                memory.writable(tensor.data_ptr(), 2)
    wrong = [scatter_indices(problem, one) + 9 for one in case.topk_idx]
    with pytest.raises(ProblemError, match=r"scatter_indices\[\d, \d\] = \d+: must be between 0 and"):
        halves.dispatch(given, scatter_indices=wrong)
    with pytest.raises(ProblemError, match=r"^fc2\.shape"):
        SimulatedEp(*kernels, [case.weights[0], replace(case.weights[1], fc2=case.weights[1].fc2[:, :128])])


def test_a_simulated_launch_writes_its_results_alone() -> None:
    read, written = torch.arange(4), torch.arange(4)
    memory = memory_of({"a": read, "nothing": torch.empty(0)}, {"d": written})
    with pytest.raises(SimError, match="read-only"):
        memory.writable(read.data_ptr(), 2)
    memory.writable(written.data_ptr(), 2)
    assert memory.read(read.data_ptr() + 8, 1)[0] == 1


def test_each_rank_has_weights_of_its_own_loaded() -> None:
    problem = replace(PROBLEMS["fp8xfp8"], num_ranks=2)
    first, second = ([random_weights(problem, rank, seed) for rank in range(2)] for seed in (0, 1))
    moe = SimulatedMoE(Artifact(choose(problem, Target.typical("sm_90a", 2), 8), "", b"", 0.0), first)
    moe.load_weights(second)
    narrow = [replace(one, fc2=one.fc2[:, :128]) for one in first]
    for wrong in ([narrow[0], first[1]], [first[0], narrow[1]]):
        for call in (moe.load_weights, lambda given: SimulatedMoE(moe.artifact, given)):
            with pytest.raises(ProblemError, match=r"^fc2\.shape"):
                call(wrong)
    # Nothing is loaded unless all fit.
    assert all(torch.equal(one.checkpoint_weights().fc1.float(), other.fc1.float()) for one, other in zip(moe.ranks, second, strict=True))


@pytest.mark.parametrize("recipe", ["fp8xfp8", "nvfp4xnvfp4"])
def test_weights_of_several_devices_are_refused(recipe: str) -> None:
    problem = replace(PROBLEMS["fp8xfp8"], recipe=recipe, biases=True)
    weights = random_weights(problem, 0, 0)
    for name in weight_names(problem)[1:]:
        with pytest.raises(ProblemError, match=rf"weights\.{name}\.device = (device\()?.*meta.*: must be cpu, where weights\.fc1 is"):
            check_weights(problem, replace(weights, **{name: getattr(weights, name).to("meta")}))


@sample("fp8xfp8")
def test_nan_stays_with_its_token(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    moe = SimulatedMoE(artifact(CONFIGS[case.problem.recipe]), case.weights)
    monkeypatch.setattr(Inputs, "check", lambda *arguments: None)
    bad = inputs(case, x=with_nan(case.x[0], 3, 1), x_sf=with_nan(case.x_sf[0], 1, 1))
    (y,), _ = moe([bad])
    kept = [0, 2, 4]
    assert torch.equal(y[kept], case.reference().y[0][kept])


@sample("fp8xfp4")
def test_other_dtypes_mean_the_same(case: Case) -> None:
    """int32 indices, and UE8M0 scales under torch's own name."""
    sf = case.x_sf[0]
    ours = {"topk_idx": case.topk_idx[0].int()}
    weights = case.weights[0]
    if case.problem.recipe == "fp8xfp4":
        sf = sf.view(torch.float8_e8m0fnu)
        scales = (weights.fc1_sf.view(torch.float8_e8m0fnu), weights.fc2_sf.view(torch.float8_e8m0fnu))
        weights = ExpertWeights(weights.fc1, scales[0], weights.fc2, scales[1])
        assert weights.fc1_sf.dtype == torch.uint8 and torch.equal(weights.fc2_sf, case.weights[0].fc2_sf)
    want = case.reference().y
    (y,), _ = SimulatedMoE(artifact(CONFIGS[case.problem.recipe]), [weights])([inputs(case, x_sf=sf, **ours)])
    assert torch.equal(y, want[0])
    given = LayerInputs(case.problem, [case.x[0]], [sf], [ours["topk_idx"]], [case.topk_weights[0]], [weights])
    assert torch.equal(mega_moe_stages(given).y[0], want[0])
