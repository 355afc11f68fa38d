"""Every entry point that needs a GPU says the same sentence without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz import run_fuzz
from fuzzing.options import FuzzOptions
from megamoe_dsl import ExpertLayer, MegaMoE, Problem, ProblemError, gemm, grouped_gemm, prepare_moe, random_inputs, random_weights
from megamoe_dsl import target as target_module
from megamoe_dsl.checkpoints.write import convert_checkpoint
from megamoe_dsl.compat import deep_gemm
from megamoe_dsl.cuda_device import ALLOWED, require_cuda, require_usable
from megamoe_dsl.runtime.ep.layer import EpMoE
from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

LAYER = Problem(256, 128, 4, 2, recipe="fp8xfp8", max_tokens_per_rank=8)
WEIGHTS = random_weights(LAYER, 0, 0)
A, A_SF = torch.zeros(128, 256).to(torch.float8_e4m3fn), torch.ones(128, 2)
B, B_SF = torch.zeros(1, 128, 256).to(torch.float8_e4m3fn), torch.ones(1, 1, 2)


@pytest.mark.parametrize(
    "call",
    {
        "MegaMoE": lambda: MegaMoE(LAYER),
        "MegaMoE with weights": lambda: MegaMoE(LAYER, WEIGHTS),
        "EpMoE": lambda: EpMoE(LAYER, WEIGHTS, activation=torch.nn.Identity()),
        "SymmetricBuffer": lambda: SymmetricBuffer.allocate(LAYER),
        "gemm": lambda: gemm(A, A_SF, B[0], B_SF[0]),
        "grouped_gemm": lambda: grouped_gemm(A, A_SF, B, B_SF, torch.tensor([128], dtype=torch.int32)),
        "random_weights": lambda: random_weights(LAYER, 0, 0, device="cuda"),
        "random_inputs": lambda: random_inputs(LAYER, 0, 4, 0, device="cuda:1"),
        "convert_checkpoint": lambda: convert_checkpoint("nowhere", Path("out"), "fp8xfp8", device="cuda"),
        "MegaMoE.prepare": lambda: MegaMoE.prepare(LAYER),
        "EpMoE.prepare": lambda: EpMoE.prepare(LAYER),
        "prepare_moe": lambda: prepare_moe(ExpertLayer(256, 128, 4, 2), 1),
        "fuzz": lambda: run_fuzz(FuzzOptions(gpu=True), print),
        "DeepGEMM's buffer": lambda: deep_gemm.get_symm_buffer_for_mega_moe(None, 4, 8, 2, 256, 128),
        "DeepGEMM's number of SMs": deep_gemm.get_num_sms,
    }.items(),
    ids=lambda one: one[0],
)
def test_without_a_gpu_all_say_the_same(call: tuple[str, Callable[[], object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(target_module, "local_target", lambda: None)
    monkeypatch.delenv(target_module.ARCH_VARIABLE, raising=False)
    with pytest.raises(ProblemError) as raised:
        call[1]()
    assert str(raised.value).endswith(ALLOWED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "device = 'gpu': must be a device of torch, as in cuda or cuda:1"),
        (None, "device = None: must be a device of torch"),
        ("meta", "device = 'meta': must be cpu or a CUDA device, as in cuda or cuda:1"),
        ("cuda:2", "device = 'cuda:2': must be one of 2 CUDA devices, counted from 0"),
    ],
)
def test_devices_that_are_none_are_named(device: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ProblemError, match=f"^{message}"):
        require_usable(device)
    assert require_usable("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ProblemError, match=r"^device = 'cpu': must be a CUDA device$"):
        require_cuda("cpu")
