"""`gemm` and `grouped_gemm`: the operators, with kernels in the simulator, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from made import count_made
from megamoe_dsl import GemmProblem, ProblemError, gemm, gemm_weights, grouped_gemm, scale_words, scales_by_column
from megamoe_dsl.arch import SM90, SM100
from megamoe_dsl.hardware.tensor_map import TensorMap
from megamoe_dsl.kernel_cases.gemm import GemmCase, gemm_case
from megamoe_dsl.quant import PackedWeightsError, inverse_utccp_scale_order, unpack_tiles
from megamoe_dsl.runtime import device_gemm
from megamoe_dsl.runtime import gemm as gemm_module
from megamoe_dsl.runtime.gemm import gemm_op, gemm_out_op
from megamoe_dsl.runtime.gemm_scales import gate_up_words
from megamoe_dsl.runtime.gemm_tensors import GemmTensors
from megamoe_dsl.target import Target
from simulated_gpu import SimulatedKernel
from sweep import rarely

SMALL = Target(SM90, 2)


class OneCounter:
    """In place of a GPU's `TileCounters`: every launch sets it back to zero."""

    memory = torch.zeros(4, dtype=torch.int32)

    def address(self) -> int:
        return int(self.memory.data_ptr())


@pytest.fixture
def on_simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors in place of a GPU's."""
    monkeypatch.setattr(device_gemm, "CudaKernel", SimulatedKernel)
    monkeypatch.setattr(device_gemm, "encode_tensor_map", TensorMap.encode)
    monkeypatch.setattr(gemm_module, "check_current", lambda device: None)
    monkeypatch.setattr(device_gemm, "tile_counters", lambda device: OneCounter())
    monkeypatch.setattr(device_gemm, "gpu_target", lambda device: SMALL)
    forget()
    yield
    forget()


def forget() -> None:
    """Kernels, and the plans that launch them."""
    device_gemm.gemm_kernel.cache_clear()
    device_gemm.loaded_gemm.cache_clear()
    gemm_module._PLANS.clear()


def small_case(kind: str = "dense", counts: tuple[int, ...] = (70,), **fields: object) -> GemmCase:
    """With scales of A as the kernel reads them: none are made on the way that the simulated GPU would not know."""
    case = gemm_case(GemmProblem(208, 256, kind, len(counts), **fields), counts)
    scales = scales_by_column(case.tensors.a_sf.flatten(0, -2))
    if kind == "masked":
        scales = scales.as_strided(case.tensors.a_sf.shape, (case.tensors.a_sf.shape[1], 1, scales.stride(1)))
    return replace(case, tensors=replace(case.tensors, a_sf=scales))


def visible(tensors: GemmTensors, d: torch.Tensor) -> dict[str, torch.Tensor]:
    storage = torch.empty(0).set_(tensors.a_sf.untyped_storage())
    found = {"a": tensors.a, "a_sf": storage, "b": tensors.b, "b_sf": tensors.b_sf, "d": d, "counter": OneCounter.memory}
    return found if tensors.groups is None else {**found, "groups": tensors.groups}


def test_result_goes_where_it_is_asked_to(on_simulator: None) -> None:
    case = small_case()
    t = case.tensors
    out = t.d.clone()
    SimulatedKernel.tensors = visible(t, out)
    assert gemm(t.a, t.a_sf, t.b, t.b_sf, out) is out
    assert torch.equal(out, case.reference())


def test_calls_alike_are_looked_at_once(on_simulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for addresses: of a call's own tensors each."""
    case = small_case()
    t = case.tensors
    outs = [t.d.clone() for _ in range(2)]
    made = count_made(GemmProblem, monkeypatch)
    for out in outs:
        SimulatedKernel.tensors = visible(t, out)
        gemm(t.a, t.a_sf, t.b, t.b_sf, out)
        assert torch.equal(out, case.reference())
        if out is outs[0]:
            made.clear()
    unaligned = torch.empty(70 * 208 + 1, dtype=torch.bfloat16)[1:].view(70, 208)
    with pytest.raises(ProblemError, match=r"out\.data_ptr\(\) = \d+: must be a multiple of 16"):
        gemm(t.a, t.a_sf, t.b, t.b_sf, unaligned)
    assert not made


@pytest.mark.parametrize("name", ["a_sf", "b", "b_sf", "d", "factors"])
def test_what_has_a_gradient_is_the_operators(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it has no backward pass, where a launch alone would leave the gradient out."""
    seen: list[str] = []
    for one in ("launch", "gemm_out_op"):
        monkeypatch.setattr(gemm_module, one, lambda *_, one=one: seen.append(one))
    t = replace(small_case().tensors, factors=torch.ones(1))
    getattr(t, name).requires_grad_()
    gemm(t.a, t.a_sf, t.b, t.b_sf, t.d, factors=t.factors)
    with torch.no_grad():
        gemm(t.a, t.a_sf, t.b, t.b_sf, t.d, factors=t.factors)
    assert seen == ["gemm_out_op", "launch"]


@pytest.mark.parametrize("kind", ["contiguous", "packed", "aligned", "masked"])
def test_rows_meet_the_matrix_of_their_group(kind: str, on_simulator: None) -> None:
    case = small_case(kind, (40, 0, 9))
    t = case.tensors
    assert t.groups is not None
    out = t.d.clone()
    SimulatedKernel.tensors = visible(t, out)
    grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, out, kind=kind)
    assert torch.equal(out, case.reference())
    assert not OneCounter.memory.any()


@pytest.mark.parametrize(("recipe", "kind"), [("fp8xfp4", "dense"), rarely("mxf4xmxf4", "masked")])
def test_types_say_what_the_tensor_core_scales(recipe: str, kind: str, on_simulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that lie as the kernel reads them; with those of rows the result is the same, but for copies that the simulated GPU would not
    know."""
    monkeypatch.setattr(device_gemm, "gpu_target", lambda device: Target(SM100, 2))
    counts = (70,) if kind == "dense" else (40, 0)
    case = gemm_case(GemmProblem(208, 256, kind, len(counts), recipe=recipe), counts)
    t = replace(case.tensors, a_sf=scale_words(case.tensors.a_sf.flatten(0, -2)), b_sf=scale_words(case.tensors.b_sf))
    out = t.d.clone()
    SimulatedKernel.tensors = {"a": t.a, "a_sf": t.a_sf, "b": t.b, "b_sf": t.b_sf, "d": out}
    if t.groups is None:
        gemm(t.a, t.a_sf, t.b, t.b_sf, out)
    else:
        SimulatedKernel.tensors["groups"] = t.groups
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, out, kind=kind)
    assert torch.equal(out, case.reference())


def test_factors_say_that_it_is_nvfp4(on_simulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_gemm, "gpu_target", lambda device: Target(SM100, 2))
    case = gemm_case(GemmProblem(208, 256, "masked", 2, recipe="nvfp4xnvfp4"), (40, 3))
    t = replace(case.tensors, a_sf=scale_words(case.tensors.a_sf.flatten(0, -2)), b_sf=gemm_weights(*case.weights, SM100)[1])
    out = t.d.clone()
    assert t.groups is not None and t.factors is not None
    SimulatedKernel.tensors = {"a": t.a, "a_sf": t.a_sf, "b": t.b, "b_sf": t.b_sf, "d": out, "groups": t.groups, "factors": t.factors}
    grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, out, kind="masked", factors=t.factors)
    assert torch.equal(out, case.reference())
    refused = {
        "factors = None: must be given beside UE4M3 scales": replace(case.tensors, factors=None),
        r"factors.shape = \(1,\): must be \(2,\)": replace(t, factors=t.factors[:1]),
        r"a.shape\[0\] = 1: must be num_groups = 2": replace(t, a=t.a[:1]),
        r"a_sf.dtype = torch.uint8: must be torch.float8_e4m3fn or torch.int32": replace(t, a_sf=case.tensors.a_sf.view(torch.uint8)),
    }
    for message, bad in refused.items():
        with pytest.raises(ProblemError, match=message):
            grouped_gemm(bad.a, bad.a_sf, bad.b, bad.b_sf, bad.groups, out, kind="masked", factors=bad.factors)
    with pytest.raises(ProblemError, match=r"b_sf.dtype = torch.float8_e4m3fn: must be torch.uint8 or torch.float8_e8m0fnu for sm_90a"):
        gemm_weights(*case.weights, "sm_90a")


@pytest.mark.parametrize(("kind", "counts"), [("dense", (30,)), ("packed", (20, 0, 9))])
def test_packed_weights_go_through_the_same_call(kind: str, counts: tuple[int, ...], on_simulator: None) -> None:
    """Of any number of columns: those that fill no tile of 256 are left out of D."""
    case = small_case(kind, counts, recipe="fp8xmxfp4")
    t = case.tensors
    b, b_sf = gemm_weights(*(one if t.groups is not None else one[0] for one in case.weights), arch="sm_90a")
    assert torch.equal(b, t.b) and b_sf.shape[-2:] == (208, 0)
    out = t.d.clone()
    SimulatedKernel.tensors = visible(t, out)
    if t.groups is None:
        gemm(t.a, t.a_sf, t.b, t.b_sf, out)
    else:
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, out)
    assert torch.equal(out, case.reference())


@pytest.mark.parametrize(("kind", "counts"), [("dense", (70,)), rarely("masked", (41, 0, 9))])
def test_bf16_has_no_scales(kind: str, counts: tuple[int, ...], on_simulator: None) -> None:
    """Any capacity is allowed: nothing is fetched by fours."""
    case = gemm_case(GemmProblem(208, 192, kind, len(counts), recipe="bf16xbf16"), counts)
    t = case.tensors
    out = t.d.clone()
    SimulatedKernel.tensors = visible(t, out)
    if t.groups is None:
        gemm(t.a, None, t.b, None, out)
    else:
        grouped_gemm(t.a, None, t.b, None, t.groups, out, kind=kind)
    assert torch.equal(out, case.reference())


def test_scales_are_given_where_values_have_some() -> None:
    t, plain = (gemm_case(GemmProblem(208, 256, recipe=recipe), (70,)).tensors for recipe in ("fp8xfp8", "bf16xbf16"))
    with pytest.raises(ProblemError, match=r"a_sf = None: must be scales beside torch.float8_e4m3fn; only torch.bfloat16 has none"):
        gemm(t.a, None, t.b, t.b_sf)
    with pytest.raises(ProblemError, match=r"b_sf = None: must be scales beside torch.float8_e4m3fn; only torch.bfloat16 has none"):
        gemm(t.a, t.a_sf, t.b, None)
    with pytest.raises(ProblemError, match=r"a_sf = 'torch.float32 \(70, 2\)': must be None: bf16xbf16 has no scales"):
        gemm(plain.a, t.a_sf, plain.b, None, t.d)
    with pytest.raises(ProblemError, match=r"a\.dtype = torch.float8_e4m3fn: must be torch.bfloat16"):
        gemm(t.a, t.a_sf, plain.b, None, t.d)


def test_weights_are_made_for_an_architecture() -> None:
    codes, scales = torch.randint(0, 256, (208, 128), dtype=torch.uint8), torch.randint(120, 124, (208, 8), dtype=torch.uint8)
    b, b_sf = gemm_weights(codes, scales.view(torch.float8_e8m0fnu), "sm_90a")
    assert b.shape == (1, 2, 17408) and b_sf.shape == (208, 0)
    back, back_sf = unpack_tiles(b[None])
    assert torch.equal(back[0, :208], codes) and torch.equal(back_sf[0, :208], scales) and not back[0, 208:].any()
    same, words = gemm_weights(codes, scales, SM100)
    assert same is codes and torch.equal(words, scale_words(scales))
    fp8 = torch.zeros(208, 256, dtype=torch.float8_e4m3fn)
    assert gemm_weights(fp8, torch.ones(2, 2))[0] is fp8
    for one in ("gate_first", "up_first", "interleaved"):
        assert torch.equal(gemm_weights(fp8, scales, gate_up=one)[1], gate_up_words(scales, one))
        assert torch.equal(gemm_weights(codes, scales, SM100, gate_up=one)[1], gate_up_words(scales, one))
    with pytest.raises(ProblemError, match="gate_up = 'up': must be one of gate_first, up_first, interleaved, or empty"):
        gemm_weights(codes, scales, SM100, gate_up="up")


BAD_WEIGHTS = {
    "b.dtype = torch.int8: must be torch.uint8, two E2M1 a byte, or torch.float8_e4m3fn": (torch.zeros(16, 64, dtype=torch.int8), 4),
    "b.shape = (16, 96): must be [n, k / 2] or [num_groups, n, k / 2], k a multiple of 128": (torch.zeros(16, 96).byte(), 6),
    "b_sf.shape = (16, 3): must be (16, 4)": (torch.zeros(16, 64).byte(), 3),
    "arch = None: must be given for a tensor on cpu": (torch.zeros(16, 64).byte(), 4),
    "b_sf.dtype = torch.float32: must be torch.uint8 or torch.float8_e8m0fnu or torch.float8_e4m3fn": (torch.zeros(16, 64).byte(), 4),
}


@pytest.mark.parametrize("message", BAD_WEIGHTS)
def test_bad_weights_are_refused(message: str) -> None:
    b, scales = BAD_WEIGHTS[message]
    with pytest.raises(ProblemError) as error:
        gemm_weights(b, torch.zeros(16, scales, dtype=torch.float32 if "float32:" in message else torch.uint8))
    assert str(error.value) == message


def test_scales_that_are_too_far_apart_are_refused() -> None:
    scales = torch.full((16, 4), 120, dtype=torch.uint8)
    scales[3, 2] = 90
    with pytest.raises(PackedWeightsError, match=r"b\[0\]: row 3, channels 0 to 127: scales 2\^30 apart"):
        gemm_weights(torch.full((16, 64), 0x11, dtype=torch.uint8), scales, SM90)


PACKED: dict[str, tuple[Callable[[GemmTensors], GemmTensors], str]] = {
    "weights of a checkpoint": (
        lambda t: replace(t, b=torch.zeros(208, 128, dtype=torch.uint8)),
        r"b\.shape = \(208, 128\): must be \[n / 256, k / 128, 17408\], as gemm_weights makes it for sm_90a",
    ),
    "a tile too few": (lambda t: replace(t, b=t.b[:, :1].contiguous()), r"a\.shape = \(70, 256\): must be \(70, 128\)"),
    "scales of a group": (
        lambda t: replace(t, b_sf=t.b_sf[None]),
        r"b_sf\.shape = \(1, 208, 0\): must be \[n, 0\], as gemm_weights makes it for sm_90a",
    ),
    "scales beside the tiles": (lambda t: replace(t, b_sf=torch.ones(208, 2)), r"b_sf\.dtype = torch.float32: must be torch.uint8"),
    "scales of bytes": (
        lambda t: replace(t, a_sf=torch.zeros(70, 8, dtype=torch.uint8)),
        r"b\.shape = \(1, 2, 17408\): must be \[n, k\]",
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_bad_packed_tensors_are_refused_before_a_launch(name: str) -> None:
    change, message = PACKED[name]
    t = change(small_case(recipe="fp8xmxfp4").tensors)
    with pytest.raises(ProblemError, match=message):
        gemm(t.a, t.a_sf, t.b, t.b_sf, t.d)


@pytest.mark.parametrize("rows", [1, 128, 200])
def test_words_hold_four_scales_of_a_row(rows: int) -> None:
    given = torch.randint(0, 255, (2, rows, 8), dtype=torch.uint8)
    words = scale_words(given)
    assert words.shape == (2, 2, -(-rows // 128) * 128) and scale_words(words) is words
    back = inverse_utccp_scale_order(words.flatten(0, 1), 2)
    assert torch.equal(back[:, :rows], given) and not back[:, rows:].any()
    assert torch.equal(scale_words(given.view(torch.float8_e8m0fnu)), words)


SCALED = {
    "scales of a in float32": (
        lambda t: replace(t, a_sf=torch.ones(70, 2)),
        r"b\.shape = \(208, 128\): must be \[n / 256, k / 128, 17408\], as gemm_weights makes it for sm_90a",
    ),
    "scales of a of another type": (
        lambda t: replace(t, a_sf=t.a_sf.char()),
        r"a_sf\.dtype = torch.int8: must be torch.uint8 or torch.float8_e8m0fnu or torch.int32",
    ),
    "a scale too few": (lambda t: replace(t, a_sf=t.a_sf[:-1]), r"a_sf\.shape = \(69, 8\): must be \(70, 8\)"),
    "words of other rows": (lambda t: replace(t, b_sf=scale_words(t.a_sf)), r"b_sf\.shape = \(2, 128\): must be \(2, 256\)"),
    "packed a of another depth": (lambda t: replace(t, a=t.a.view(torch.uint8)), r"a\.shape = \(70, 256\): must be \(70, 128\)"),
    "b that is not aligned": (
        lambda t: replace(t, b=torch.empty(208 * 128 + 16, dtype=torch.uint8)[16:].view(208, 128)),
        r"b\.data_ptr\(\) = \d+: must be a multiple of 32",
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_bad_scaled_tensors_are_refused_before_a_launch(name: str) -> None:
    change, message = SCALED[name]
    t = change(gemm_case(GemmProblem(208, 256, recipe="fp8xfp4"), (70,)).tensors)
    with pytest.raises(ProblemError, match=message):
        gemm(t.a, t.a_sf, t.b, t.b_sf, t.d)


def test_a_capacity_is_whole_atoms_of_scales() -> None:
    t = gemm_case(GemmProblem(208, 256, "masked", 2, recipe="fp8xfp4"), (40, 9)).tensors
    cut = {name: getattr(t, name)[:, :96].contiguous() for name in ("a", "a_sf", "d")}
    with pytest.raises(ProblemError, match=r"a\.shape\[1\] = 96: must be a multiple of 128"):
        grouped_gemm(cut["a"], cut["a_sf"], t.b, t.b_sf, t.groups, cut["d"], kind="masked")


@pytest.mark.parametrize("operator", [False, True])
def test_float32_is_added_to(operator: bool, on_simulator: None) -> None:
    case = small_case(output="f32", accumulate=True)
    t = case.tensors
    expected = case.reference()
    SimulatedKernel.tensors = visible(t, t.d)
    if operator:
        gemm_out_op(t.d, t.a, t.a_sf, t.b, t.b_sf, None, None, "dense", True, False)
    else:
        gemm(t.a, t.a_sf, t.b, t.b_sf, t.d, accumulate=True)
    assert torch.equal(t.d, expected)


def test_no_rows_launch_nothing(on_simulator: None) -> None:
    t = small_case().tensors
    SimulatedKernel.launched = []
    assert gemm(t.a[:0], t.a_sf[:0], t.b, t.b_sf, t.d[:0]).shape == (0, 208)
    assert not SimulatedKernel.launched


def test_compilers_know_the_result_without_running() -> None:
    with torch.device("meta"):
        a, a_sf = torch.empty(70, 256, dtype=torch.float8_e4m3fn), torch.empty(70, 2)
        b, b_sf = torch.empty(3, 208, 256, dtype=torch.float8_e4m3fn), torch.empty(3, 2, 2)
        ends = torch.empty(3, dtype=torch.int32)
        d = gemm_op(a, a_sf, b, b_sf, ends, None, "packed", torch.float32, False)
        assert (d.shape, d.dtype) == ((70, 208), torch.float32)
        assert gemm_out_op(d, a, a_sf, b, b_sf, ends, None, "packed", False, False) is None
        assert gemm_op(a, a_sf, b, b_sf, ends, None, "packed", torch.float32, True).shape == (70, 208)
        tiles, none = torch.empty(3, 1, 2, 17408, dtype=torch.uint8), torch.empty(3, 208, 0, dtype=torch.uint8)
        assert gemm_op(a, a_sf, tiles, none, ends, None, "packed", torch.bfloat16, False).shape == (70, 208)


REFUSED: dict[str, tuple[Callable[[GemmTensors], GemmTensors], str]] = {
    "a of another type": (lambda t: replace(t, a=t.a.float()), r"a\.dtype = torch.float32: must be torch.float8_e4m3fn"),
    "a with another depth": (lambda t: replace(t, a=t.a[:, :128].contiguous()), r"a\.shape = \(70, 128\): must be \(70, 256\)"),
    "a of three dimensions": (lambda t: replace(t, a=t.a[None]), r"a\.shape = \(1, 70, 256\): must be \[m, k\]"),
    "scales of another type": (lambda t: replace(t, a_sf=t.a_sf.double()), r"a_sf\.dtype = torch.float64: must be torch.float32"),
    "a scale too few": (lambda t: replace(t, a_sf=t.a_sf[:-1]), r"a_sf\.shape = \(69, 2\): must be \(70, 2\)"),
    "scales of b per row": (lambda t: replace(t, b_sf=torch.ones(208, 2)), r"b_sf\.shape = \(208, 2\): must be \(2, 2\)"),
    "b by columns": (
        lambda t: replace(t, b=t.b.view(torch.uint8).T.contiguous().T.view(t.b.dtype)),
        r"b\.stride\(\) = \(1, 208\): must be",
    ),
    "b with odd rows": (lambda t: replace(t, b=t.b[:200], b_sf=t.b_sf), r"n = 200: must be a multiple of 16"),
    "out of another shape": (lambda t: replace(t, d=t.d[:, :192].contiguous()), r"out\.shape = \(70, 192\): must be \(70, 208\)"),
    "out of another type": (lambda t: replace(t, d=t.d.half()), r"out\.dtype = torch.float16: must be torch.bfloat16 or torch.float32"),
    "bf16 to add to": (lambda t: t, r"accumulate = True: must be False where the output is bf16"),
    "out that is not aligned": (
        lambda t: replace(t, d=torch.empty(70 * 208 + 1, dtype=torch.bfloat16)[1:].view(70, 208)),
        r"out\.data_ptr\(\) = \d+: must be a multiple of 16",
    ),
    "no GPU": (lambda t: t, r"a\.device = 'cpu': must be a CUDA device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_tensors_are_refused_before_a_launch(name: str) -> None:
    change, message = REFUSED[name]
    t = change(small_case().tensors)
    with pytest.raises(ProblemError, match=message):
        gemm(t.a, t.a_sf, t.b, t.b_sf, t.d, accumulate="add" in name)


def test_bad_groups_are_refused() -> None:
    t = small_case("packed", (40, 0, 9)).tensors
    assert t.groups is not None
    with pytest.raises(ProblemError, match=r"groups\.shape = \(2,\): must be \(3,\)"):
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups[:2], t.d)
    with pytest.raises(ProblemError, match=r"groups\.dtype = torch.int64: must be torch.int32"):
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups.long(), t.d)
    with pytest.raises(ProblemError, match=r"kind = 'sorted': must be one of contiguous, packed, aligned, masked"):
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, t.d, kind="sorted")
    with pytest.raises(ProblemError, match=r"a\.shape\[0\] = 49: must be a multiple of 128 for a contiguous problem"):
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, t.d, kind="contiguous")
    with pytest.raises(ProblemError, match=r"accumulate = True: must be False without out"):
        grouped_gemm(t.a, t.a_sf, t.b, t.b_sf, t.groups, accumulate=True)
