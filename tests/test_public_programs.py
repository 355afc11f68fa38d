"""The script that runs public programs: small programs in a checkout of a test's own, on the stand-in host."""

from pathlib import Path

import pytest

import public_programs
from public_programs import EXAMPLES, Program, programs, run, table

HEAD = """
import cutlass, cutlass.cute as cute, torch
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def mirror_kernel(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    shared = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    shared[thread] = 0.0
    cute.arch.barrier()
    shared[thread] = x[thread]
    if cutlass.const_expr(barrier):
        cute.arch.barrier()
    y[thread] = shared[63 - thread]

@cute.jit
def mirror(x: cute.Tensor, y: cute.Tensor, barrier: cutlass.Constexpr):
    mirror_kernel(x, y, barrier).launch(grid=(1, 1, 1), block=(64, 1, 1))

x = torch.arange(64, dtype=torch.float32, device="cuda")
y = torch.empty_like(x)
assert x.is_cuda and x.data_ptr() % 512 == 0 and torch.cuda.get_device_capability() == (9, 0)
"""
CHECK = "torch.cuda.synchronize()\nassert (y.cpu() == x.cpu().flip(0)).all()\nprint('PASS')\n"
RIGHT = f"{HEAD}mirror(from_dlpack(x), from_dlpack(y), True)\n{CHECK}"
PROGRAMS = {
    "right": RIGHT,
    "compiled": f"{HEAD}cute.compile(mirror, from_dlpack(x), from_dlpack(y), True)(from_dlpack(x), from_dlpack(y))\n{CHECK}",
    "racing": f"{HEAD}mirror(from_dlpack(x), from_dlpack(y), False)\n",
    "wrong": RIGHT.replace("shared[63 - thread]", "shared[62 - thread % 2]"),
    "refused": f"{HEAD}mirror(from_dlpack(x), from_dlpack(y[:32]), True)\n".replace("y[thread]", "y[thread + 100_000_000]"),
    "nothing": "print('PASS')\n",
    "late": "import time\ntime.sleep(60)\n",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / EXAMPLES).mkdir(parents=True)
    found = {}
    public_programs.preload()
    for name, text in PROGRAMS.items():
        (checkout / EXAMPLES / f"{name}.py").write_text(text)
        found[name] = run(Program("cutlass", f"{name}.py", "sm_90a"), checkout, 5.0 if name == "late" else 120.0)
    return found


def test_each_is_judged_by_its_own_check(outcomes):
    assert {name: one["outcome"] for name, one in outcomes.items()} == {
        **dict.fromkeys(("right", "compiled", "racing"), "passed"),
        **dict.fromkeys(("wrong", "refused"), "failed"),
        "nothing": "nothing launched",
        "late": "time",
    }


def test_findings_and_reasons_are_kept(outcomes):
    assert outcomes["right"]["findings"] == [] and outcomes["right"]["launches"] == 1
    assert "RAW race" in {one["kind"] for one in outcomes["racing"]["findings"]}
    assert "racing.py:" in outcomes["racing"]["findings"][0]["text"]
    assert outcomes["wrong"]["reason"] == "AssertionError"
    assert outcomes["refused"]["reason"].startswith("SimError: global access out of bounds")


def test_the_table_counts(outcomes):
    lines = table(list(outcomes.values())).splitlines()
    assert lines[-1] == "7 programs: 3 passed, 2 failed, 1 nothing launched, 1 time; 2 passed without a finding"
    assert sum("cutlass/racing.py" in line for line in lines) == 1


def test_the_list_names_each_program_once():
    listed = programs()
    assert len({one.result_name for one in listed}) == len(listed) >= 142
    assert {one.source for one in listed} == {"cutlass", "quack"}
    assert all(Path(one.file.split("::")[0]).suffix == ".py" for one in listed)
