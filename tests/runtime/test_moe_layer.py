"""The layer that chooses its launches: on the CPU the same y as the layers it is made of, and which launches it chooses on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megamoe_dsl import MegaMoE, MoE, Problem, ProblemError, Router, moe, random_weights, top_experts, unscaled_weights
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.recipe import E2M1, E4M3, RECIPES
from megamoe_dsl.reference import activate
from megamoe_dsl.runtime import moe_layer
from megamoe_dsl.runtime.moe_layer import MoeLaunches, choose_launch, domain_layer, takes_moe
from megamoe_dsl.runtime.nodes import ranks_of_a_domain
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer
from megamoe_dsl.target import Target
from megamoe_dsl.tuned import LaunchEntry, tuned_table

PROBLEM = Problem(256, 128, 8, 2, max_tokens_per_rank=16, recipe="fp8xfp8")
QWEN3 = Problem(2048, 768, 128, 8, max_tokens_per_rank=4096, recipe="fp8xfp8")
DEEPSEEK_V3 = {"hidden": 7168, "intermediate": 2048, "num_experts": 256}
H100 = "NVIDIA H100 80GB HBM3"
PAGE = Path(__file__).parents[2] / "docs" / "lab" / "launches.md"


def call() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, scores = torch.randn(5, 256, generator=generator).bfloat16(), torch.rand(5, 8, generator=generator)
    return x, scores.topk(2).indices, torch.rand(5, 2, generator=generator)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"router": Router(torch.randn(7, 256))}, r"router.weight.shape\[0\] = 7: must be num_experts = 8"),
        ({"router": torch.randn(8, 256)}, "router = 'Tensor': must be a Router"),
        ({"device": "foo"}, "device = 'foo': must be a device of torch"),
    ],
)
def test_what_is_no_layer_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=f"^{message}"):
        MoE(PROBLEM, random_weights(PROBLEM, 0, 0), **fields)


def test_it_computes_what_its_layer_does() -> None:
    """The fused one, and with launch = "moe" or BF16 weights `moe`."""
    weights, given = random_weights(PROBLEM, 0, 0), call()
    fused = MegaMoE(PROBLEM, weights, symmetric=SymmetricBuffer.allocate(PROBLEM, device="cpu"))
    found = MoE(PROBLEM, weights)
    with pytest.raises(ProblemError, match=r"^x = None: must be a tensor"):
        found(None, *given[1:])
    assert torch.equal(found(*given), fused(*given)) and found.device == torch.device("cpu")
    x, idx, topk_weights = given
    expected = moe(x, weights.fc1, weights.fc1_sf, weights.fc2, weights.fc2_sf, idx, topk_weights)
    assert torch.equal(MoE(PROBLEM, weights, launch="moe")(*given), expected)
    w1, w2 = torch.randn(8, 256, 256).bfloat16() / 16, torch.randn(8, 256, 128).bfloat16() / 16
    assert torch.equal(MoE.of(unscaled_weights(w1, w2), 2, 16)(*given), moe(x, w1, None, w2, None, idx, topk_weights))
    later = MoE(PROBLEM, device="cpu")
    for index in range(8):
        later.load_expert(index, weights.expert(index))
    assert torch.equal(later(*given), found(*given))
    assert torch.equal(torch.compile(found, fullgraph=True, backend="aot_eager")(*given), found(*given))


@pytest.mark.parametrize(
    ("dtype", "arch", "recipe", "width"),
    [
        (torch.bfloat16, None, "bf16xbf16", 256),
        (torch.bfloat16, SM90, "bf16xbf16", 256),
        (torch.float8_e4m3fn, SM90, "fp8xfp8", 256),
        (torch.float8_e4m3fn, SM100, "fp8xfp8", 256),
        (torch.uint8, None, "fp8xfp4", 512),
        (torch.uint8, SM90, "fp8xmxfp4", 512),
        (torch.uint8, SM100, "fp8xfp4", 512),
    ],
)
def test_weights_say_which_layer_they_are_of(
    dtype: torch.dtype, arch: Any, recipe: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two codes of E2M1 are in a byte; `fields` come before what weights say."""
    monkeypatch.setattr(moe_layer, "device_arch", lambda device: arch or pytest.fail("no GPU"))
    made: list[Any] = []
    monkeypatch.setattr(MoE, "__init__", lambda layer, *given, **others: made.append((*given, others)))
    fc1 = SimpleNamespace(dtype=dtype, shape=(4, 256, 256), is_cuda=arch is not None, device="cuda:1")
    of_two, weights = SimpleNamespace(size=lambda: 2), SimpleNamespace(fc1=fc1, fc1_bias=None)
    MoE.of(weights, 2, 16, group=of_two, tokens=3)  # type: ignore[arg-type]
    MoE.of(SimpleNamespace(fc1=fc1, fc1_bias=fc1), 1, 1, fields={"recipe": "fp8xfp8", "activation": "situ"})  # type: ignore[arg-type]
    (problem, given, others), (alone, *_) = made
    assert problem == Problem(width, 128, 8, 2, num_ranks=2, max_tokens_per_rank=16, recipe=recipe) and given is weights
    assert others == {"group": of_two, "tokens": 3}
    assert alone == Problem(width, 128, 4, 1, max_tokens_per_rank=1, recipe="fp8xfp8", activation="situ", biases=True)


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16", "fp8xfp4", "mxf4xmxf4", "mxfp8xmxfp8", "nvfp4xnvfp4"])
@pytest.mark.parametrize("fields", [{}, {"activation_clamp": 0.25}, {"activation": "swigluoai", "biases": True}])
def test_separate_launches_compute_the_fused_layer(recipe: str, fields: dict[str, Any]) -> None:
    """Whatever the activation and the number formats are; each rounds in other places.  Only Hopper's have biases."""
    if RECIPES[recipe].scales_in_mma:
        fields = {name: one for name, one in fields.items() if name != "biases"}
    problem = replace(PROBLEM, recipe=recipe, **fields)
    weights, given = random_weights(problem, 0, 0), call()
    fused = MegaMoE(problem, weights, symmetric=SymmetricBuffer.allocate(problem, device="cpu"))
    want, found = fused(*given).float(), MoE(problem, weights, launch="moe")(*given).float()
    assert (
        want.norm() > 0 and (found - want).norm() < ({E4M3: 0.06, E2M1: 0.25}.get(problem.formats.activations.element, 0.02)) * want.norm()
    )


@pytest.mark.parametrize("recipe", ["fp8xfp8", "bf16xbf16", "fp8xmxfp4", "nvfp4xnvfp4"])
def test_torchs_default_device_does_not_matter(recipe: str) -> None:
    """Programs set it to CUDA: whatever a layer makes is where its tensors are, forwards and backwards."""
    problem = replace(PROBLEM, recipe=recipe, biases=True, activation_clamp=2.0)
    weights, given = random_weights(problem, 0, 0), call()
    x, router = given[0].clone().requires_grad_(), Router(torch.randn(8, 256))
    w1, w2 = torch.randn(8, 256, 256).bfloat16() / 16, torch.randn(8, 256, 128).bfloat16() / 16

    def results() -> list[torch.Tensor]:
        fused = MegaMoE(problem, weights, symmetric=SymmetricBuffer.allocate(problem, device="cpu"))
        launches = [MoE(problem, weights, launch="moe", router=router)(given[0])] if recipe in ("fp8xfp8", "bf16xbf16") else []
        x.grad = None
        moe(x, w1, None, w2, None, *given[1:]).float().square().sum().backward()
        assert x.grad is not None
        return [fused(*given), *launches, x.grad]

    want = results()
    with torch.device("meta"):
        found = results()
    assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


@pytest.mark.parametrize("recipe", ["nvfp4xnvfp4", "mxfp8xmxfp8"])
def test_scales_that_the_tensor_core_applies_are_put_in_order_once(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows of gate and up beside one another, and factors of each expert."""
    problem = replace(PROBLEM, recipe=recipe)
    weights, called = random_weights(problem, 0, 0), []
    ordered = lambda codes, scales, arch, gate_up: (codes, (id(scales), arch, gate_up))  # noqa: E731
    monkeypatch.setattr(moe_layer, "gemm_weights", ordered)
    monkeypatch.setattr(moe_layer, "moe", lambda x, **given: called.append(given))
    x, idx, topk_weights = call()
    MoE(problem, weights, launch="moe").experts(x, idx, topk_weights)
    given = {name: one for name, one in called[0].items() if one is not None}
    assert given.pop("topk_idx") is idx and given.pop("topk_weights") is topk_weights and given.pop("activation") == "silu"
    assert given.pop("recipe") == recipe
    assert given.pop("w1") is weights.fc1 and given.pop("w1_sf") == (id(weights.fc1_sf), SM100, "gate_first")
    assert given.pop("w2") is weights.fc2 and given.pop("w2_sf") == (id(weights.fc2_sf), SM100, "")
    if weights.factors is not None:
        factors = given.pop("factors")
        assert torch.equal(factors, weights.factors.T) and factors.is_contiguous()
    assert not given and (weights.factors is not None) == (recipe == "nvfp4xnvfp4")


@pytest.mark.parametrize(
    ("fields", "trained"),
    [({}, True), ({"recipe": "fp8xfp8"}, False), ({"biases": True}, False), ({"activation_clamp": 1.0}, False)],
)
def test_which_launches_have_gradients(fields: dict[str, Any], trained: bool) -> None:
    problem = replace(PROBLEM, **{"recipe": "bf16xbf16", **fields})
    weights = random_weights(problem, 0, 0)
    found = MoE(problem, weights, launch="moe").experts.trained
    assert len(found) == (2 if trained else 0) and all(one is own for one, own in zip(found, (weights.fc1, weights.fc2), strict=False))


def test_a_router_chooses() -> None:
    """By scores, by a table of ids, and among replicas."""
    weights, (x, _, _) = random_weights(PROBLEM, 0, 0), call()
    router = torch.randn(8, 256)
    logits, plain = x.float() @ router.T, MoE(PROBLEM, weights)
    bias = torch.linspace(-1, 1, 8)
    layer = MoE(PROBLEM, weights, router=Router(router, "sqrtsoftplus", bias, scale=1.5))
    assert torch.equal(layer(x), plain(x, *top_experts(logits, 2, scores="sqrtsoftplus", bias=bias, scale=1.5)))
    table = torch.tensor([[0, 3], [7, 1]], dtype=torch.int32)
    hashed = MoE(PROBLEM, weights, router=Router(router, "sqrtsoftplus", hash_table=table))
    ids = torch.tensor([1, 0, 1, 1, 0])
    idx, topk_weights = top_experts(logits, 2, scores="sqrtsoftplus", token_ids=ids, hash_table=table)
    assert idx.tolist() == [[7, 1], [0, 3], [7, 1], [7, 1], [0, 3]]
    assert torch.equal(hashed(x, token_ids=ids), plain(x, idx, topk_weights))
    places = torch.tensor([[7, 6], [5, -1], [4, -1], [3, 2]], dtype=torch.int32)  # of four logical experts among eight physical ones
    balanced, few = MoE(PROBLEM, weights, router=Router(router[:4], replicas=places)), logits[:, :4].contiguous()
    idx, topk_weights = top_experts(few, 2, replicas=places)
    copies = [[7, 6], [5, 5], [4, 4], [3, 2]]  # of even and odd tokens
    assert idx.tolist() == [[copies[one][token % 2] for one in row] for token, row in enumerate(top_experts(few, 2)[0].tolist())]
    assert torch.equal(balanced(x), plain(x, idx, topk_weights))
    of_rank_1, weights_of_1 = Router(router[:4], replicas=places)(x, 2, None, 1)
    balanced.rank = 1
    assert torch.equal(balanced(x), plain(x, of_rank_1, weights_of_1)) and not torch.equal(balanced(x), plain(x, idx, topk_weights))
    assert not torch.equal(of_rank_1, idx) and torch.equal(of_rank_1, top_experts(few, 2, replicas=places, replica_shift=1)[0])


@pytest.mark.parametrize(
    ("fields", "arch", "tokens", "expected"),
    [
        ({}, SM90, 1, "moe"),
        ({}, SM90, 4000, "moe"),
        ({}, SM90, 0, "moe"),
        (DEEPSEEK_V3, SM90, 97, "mega_moe"),
        (DEEPSEEK_V3, SM90, 300, "moe"),
        (DEEPSEEK_V3, SM90, 200, "moe"),  # 512 is nearer than 64, by their ratios
        (DEEPSEEK_V3, SM90, 4000, "moe"),
        ({"hidden": 4096}, SM90, 97, "moe"),
        ({"recipe": "bf16xbf16"}, SM90, 97, "moe"),
        ({"recipe": "bf16xbf16", "num_ranks": 8}, SM90, 97, "ep_moe"),
        ({"recipe": "fp8xmxfp4"}, SM90, 97, "mega_moe"),
        ({"num_ranks": 8}, SM90, 97, "mega_moe"),
        ({"recipe": "fp8xfp4"}, SM100, 97, "mega_moe"),
        ({"recipe": "fp8xfp4"}, SM90, 97, "ep_moe"),  # which refuses what no launch of the architecture takes
        ({"recipe": "fp8xmxfp4"}, SM100, 97, "ep_moe"),
        ({"recipe": "bf16xbf16"}, SM100, 97, "moe"),
        ({"recipe": "bf16xbf16", "biases": True}, SM100, 97, "ep_moe"),  # moe has biases on Hopper alone
    ],
)
def test_the_launch_that_was_faster_is_chosen(fields: dict[str, Any], arch: Any, tokens: int, expected: str) -> None:
    assert choose_launch(replace(QWEN3, **fields), Target(arch, 132, H100), tokens) == expected


def test_a_gpus_layer_is_of_the_class_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the arguments that it was asked for with; an option that it has not, or a launch that takes no such layer, is refused."""
    monkeypatch.setattr(moe_layer, "gpu_target", lambda device: Target(SM90, 132, H100))
    for name in ("MegaMoE", "EpMoE", "MoeLaunches", "DeepEpMoE"):
        monkeypatch.setattr(moe_layer, name, lambda *given, _name=name, **options: (_name, given, options))
    cuda, weights, two = torch.device("cuda"), "weights", replace(QWEN3, num_ranks=2)
    deepseek = replace(QWEN3, **DEEPSEEK_V3)

    def found(problem: Problem, given: Any = weights, **others: Any) -> Any:
        return domain_layer(problem, given, "group", cuda, **others)

    assert found(QWEN3) == ("MoeLaunches", (QWEN3, weights, SM90), {})
    assert found(deepseek, tokens=97, bounds=[3]) == ("MegaMoE", (deepseek, weights), {"group": "group", "bounds": [3]})
    assert found(deepseek, tokens=4000)[0] == "MoeLaunches"
    assert found(QWEN3, None) == ("MegaMoE", (QWEN3, None), {"group": "group"})
    assert found(QWEN3, launch="mega_moe", reserved_sms=4) == ("MegaMoE", (QWEN3, weights), {"group": "group", "reserved_sms": 4})
    assert found(two, launch="deep_ep", buffer=1) == ("DeepEpMoE", (two, weights), {"group": "group", "buffer": 1})
    for launch in (None, "mega_moe"):
        assert found(two, activation=torch.relu, launch=launch) == ("EpMoE", (two, weights), {"group": "group", "activation": torch.relu})
    own = replace(two, activation_clamp=0.5)
    kind, given, options = found(own, launch="ep_moe")
    rows = torch.randn(4, 2 * own.intermediate).bfloat16() * 4
    assert (kind, given, options.pop("group")) == ("EpMoE", (own, weights), "group")
    assert torch.equal(options.pop("activation")(rows), activate(own, rows.float(), None).bfloat16()) and not options
    plain = replace(two, recipe="bf16xbf16")  # whose kernels activate
    assert found(plain) == ("EpMoE", (plain, weights), {"group": "group", "activation": None})
    for problem, given, others, message in (
        (QWEN3, weights, {"bounds": [3]}, "bounds = None: must be given, and no option, with launch = 'moe'"),
        (QWEN3, None, {"activation": torch.relu}, "weights = None: must be given, and no option, with launch = 'ep_moe'"),
        (two, None, {"launch": "deep_ep"}, "launch = 'deep_ep': must be another without weights"),
        (two, weights, {"launch": "deep_ep", "activation": torch.relu}, "launch = 'deep_ep': must be another without weights"),
    ):
        with pytest.raises(ProblemError, match=message):
            found(problem, given, **others)


@pytest.mark.parametrize(
    ("recipe", "ranks", "biases"),
    [("fp8xfp8", 2, False), ("fp8xfp4", 3, False), ("fp8xmxfp4", 2, False), ("bf16xbf16", 1, True), ("bf16xbf16", 2, False)],
)
def test_the_problem_of_weights(recipe: str, ranks: int, biases: bool) -> None:
    """Of a rank's weights, for a group of ranks; fields come in the place of what weights say, as E2M1 on a CPU says SM100's recipe."""
    problem = Problem(512, 256, 3 * ranks, 2, ranks, 40, recipe=recipe, biases=biases, activation_clamp=3.0)
    weights, group = random_weights(problem, 0, 0), SimpleNamespace(size=lambda: ranks)
    fields = {"activation_clamp": 3.0} | ({"recipe": recipe} if recipe == "fp8xmxfp4" else {})

    class Seen(MoE):
        def __init__(self, *given: Any, **others: Any) -> None:
            self.given, self.others = given, others

    for one in (group, None) if ranks == 1 else (group,):
        layer = Seen.of(weights, 2, 40, group=one, fields=fields, launch="moe")
        assert layer.given == (problem, weights) and layer.others == {"group": one, "launch": "moe"}


@pytest.mark.parametrize(
    ("fields", "arch", "taken"),
    [
        ({}, SM90, True),
        ({"num_ranks": 2}, SM90, False),
        ({"hidden": 320}, SM90, False),
        ({"hidden": 320, "recipe": "bf16xbf16"}, SM90, True),
        ({"intermediate": 192, "recipe": "bf16xbf16"}, SM90, True),
        ({"hidden": 320, "recipe": "bf16xbf16"}, SM100, False),
        ({"intermediate": 192, "recipe": "bf16xbf16"}, SM100, False),
        ({"biases": True}, SM90, True),
        ({"biases": True, "recipe": "bf16xbf16"}, SM100, False),
        ({"recipe": "fp8xmxfp4"}, SM90, False),
        ({"recipe": "mxf4xmxf4"}, SM100, True),
        ({"recipe": "mxf4xmxf4"}, SM90, False),
    ],
)
def test_layers_that_moe_takes(fields: dict[str, Any], arch: Any, taken: bool) -> None:
    problem = replace(PROBLEM, **fields)
    assert takes_moe(problem, arch) == taken
    if not taken:
        with pytest.raises(
            ProblemError, match=f"launch = 'moe': must be another: moe takes no {problem.recipe} layer of {problem.num_ranks}"
        ):
            MoeLaunches(problem, random_weights(problem, 0, 0), arch)


def test_nobody_measured_this_gpu() -> None:
    assert choose_launch(QWEN3, Target(SM90, 132, "NVIDIA GPU"), 97) == "moe"
    assert choose_launch(replace(QWEN3, recipe="fp8xfp4"), Target(SM100, 148, "NVIDIA GPU"), 97) == "mega_moe"


@pytest.mark.parametrize("gpu", [H100, "NVIDIA H200"])
def test_the_page_has_the_measured_times(gpu: str) -> None:
    for one in tuned_table(gpu, LaunchEntry).entries:
        row = f"| {one.hidden} x {one.intermediate}, {one.experts_per_rank} | {one.tokens} | {one.us['moe']} | {one.us['mega_moe']} |"
        assert row in PAGE.read_text() and Path(one.results).stem in PAGE.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launch": "fastest"}, "launch = 'fastest': must be one of moe, mega_moe, ep_moe, deep_ep"),
        ({"activation": torch.relu}, "activation = .*: must be None on the CPU"),
        ({"tokens": -1}, "tokens = -1: must be between 0 and max_tokens_per_rank = 16"),
        ({"tokens": 17}, "tokens = 17: must be between 0 and max_tokens_per_rank = 16"),
        ({"bounds": (8,), "bound": 8}, "bound = 8: must be left out: a layer has no such option"),
        ({"launch": "moe", "problem": replace(PROBLEM, recipe="fp8xmxfp4")}, "launch = 'moe': must be another: moe takes no fp8xmxfp4"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], message: str) -> None:
    given = {"problem": PROBLEM, **options}
    with pytest.raises(ProblemError, match=message):
        MoE(weights=random_weights(given["problem"], 0, 0), **given)


def test_calls_and_groups_that_do_not_fit_are_named() -> None:
    layer, (x, idx, topk_weights) = MoE(PROBLEM, random_weights(PROBLEM, 0, 0)), call()
    with pytest.raises(ProblemError, match="topk_idx = None: must be given, or the layer made with a router"):
        layer(x)
    with pytest.raises(ProblemError, match="topk_idx, topk_weights = None: must be both given, or neither"):
        layer(x, idx)
    several = replace(PROBLEM, num_ranks=2)
    with pytest.raises(ProblemError, match="group = None: must be a process group of num_ranks = 2 ranks"):
        MoE(several, random_weights(several, 0, 0))
    with pytest.raises(ProblemError, match="weights = None: must be given for several ranks on the CPU"):
        domain_layer(several, None, None, torch.device("cpu"))
    trains = topk_weights.clone().requires_grad_()
    with pytest.raises(ProblemError, match=r"topk_weights.requires_grad = True"):
        layer(x, idx, trains)


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [("aabb", 2), ("abc", 1), ("aaaa", 4), ("aab", None), ("aabbaa", None), ("abab", None), ("abba", None), ("aabbbb", None)],
)
def test_ranks_of_a_host_follow_one_another(hosts: str, ranks: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_gather_object(found: list[Any], own: str, group: Any) -> None:
        found[:] = hosts

    monkeypatch.setattr(moe_layer.dist, "get_world_size", lambda group: len(hosts))
    monkeypatch.setattr(moe_layer.dist, "all_gather_object", all_gather_object)
    if ranks is not None:
        assert ranks_of_a_domain(None) == ranks
        return
    with pytest.raises(ProblemError, match=r"domain = .*: must be given where hosts"):
        ranks_of_a_domain(None)


def test_weights_that_were_gathered_do_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copies: a gradient would not reach the ranks' own."""
    problem = Problem(256, 128, 4, 2, num_ranks=2, max_tokens_per_rank=8, recipe="bf16xbf16")
    alone = replace(problem, num_ranks=1)
    every = random_weights(alone, 0, 0)
    monkeypatch.setattr(moe_layer, "gathered", lambda weights, group, ranks: weights if ranks == 1 else every)
    assert moe_layer.cpu_layer(problem, random_weights(problem, 0, 0), None, None).trained == ()
    assert moe_layer.cpu_layer(alone, every, None, None).trained == (every.fc1, every.fc2)
