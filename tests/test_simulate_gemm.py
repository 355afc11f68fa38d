"""`megamoe simulate` of GEMMs: what is simulated, and the verdict on results that a stand-in for the simulator writes."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from megamoe_dsl.cli import simulations
from megamoe_dsl.cli.app import app
from megamoe_dsl.cli.simulations import BOUNDED, EQUAL
from megamoe_dsl.sim import Report

RUN = {
    "dense": ["gemm", "n=128,k=256", "130", "130"],
    "added": ["gemm", "n=128,k=256,accumulate=true,output=f32", "5", "5"],
    "grouped": ["gemm", "n=128,k=128,kind=packed,num_groups=2", "3", "3,3"],
    "gathered": ["gather_gemm", "n=128,k=128,num_groups=2", "3,0", "3,0"],
    "of gradients": ["varlen_k_gemm", "n=128,k=128,num_groups=2", "128", "128,128"],
}
CHECKED = {name: ["D"] for name in RUN}
RUN["gradient"] = ["gather_gemm", "n=128,k=128,num_groups=2,gradient=gate_first", "3,2", "3,2"]
RUN["gate and up"] = ["gather_gemm", "n=256,k=128,num_groups=2,gate_up=gate_first,output=e4m3,preactivations=true", "3,2", "3,2"]
CHECKED["gradient"] = ["dH", "weighted", "dots"]
CHECKED["gate and up"] = ["D", "scales of D", "gate and up"]


class Simulation:
    """Writes what the reference says, and then adds to the first element of one result."""

    def __init__(self, patch: pytest.MonkeyPatch, wrong: str | None = None) -> None:
        self.wrong, self.given = wrong, dict[str, Any]()
        self._case_of = simulations.case_of
        patch.setattr(simulations, "case_of", self.case_of)
        patch.setattr(simulations, "compiled", lambda console, configs: [SimpleNamespace(config=one) for one in configs])
        patch.setattr(simulations, "simulate_gemm", self.run)

    def case_of(self, *arguments: Any, exact: bool) -> Any:
        self.case, self.exact = self._case_of(*arguments, exact=exact), exact
        return self.case

    def run(self, artifact: Any, tensors: Any, **given: Any) -> Report:
        assert tensors is self.case.tensors
        self.given = given
        for name, (d, low, _) in self.case.compared(exact=self.exact, k_blocks=artifact.config.most_k_blocks).items():
            d.copy_(low)
            if name == self.wrong:
                self.spoil(d)
        return Report()

    @staticmethod
    def spoil(d: torch.Tensor) -> None:
        placed = d.view(-1).view(torch.uint8)
        placed[0] ^= 0x40
        placed[-1] ^= 0x40


def simulate(name: str, *others: str) -> Any:
    kernel, fields, tokens, _ = RUN[name]
    command = ["simulate", "--kernel", kernel, "--arch", "sm_90a", "--fields", fields, "--tokens", tokens, *others]
    return CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, command)


@pytest.mark.parametrize("name", RUN)
def test_equal_results_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    result = simulate(name, "--launches", "2", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert re.findall(r"(\S.*) against the reference", result.output) == CHECKED[name]
    proved = BOUNDED if name == "gradient" else EQUAL
    assert f" {RUN[name][3]} " in result.output and f"PASS: {proved}; no race found" in result.output
    del simulation.given["progress"]
    assert simulation.given == {"launches": 1 if name == "added" else 2, "seed": 7, "race": True}


@pytest.mark.parametrize(("name", "wrong"), [("dense", "D"), *(("gate and up", one) for one in CHECKED["gate and up"])])
def test_a_wrong_element_fails(name: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulation(monkeypatch, wrong)
    result = simulate(name, "--no-race")
    assert result.exit_code == 1 and result.output.rstrip().endswith("FAIL"), result.output
    tables = result.output.split(" against the reference")
    assert [one for one, table in zip(CHECKED[name], tables[1:], strict=True) if "2 mismatches" in table] == [wrong]
    assert "not looked for" in result.output


@pytest.mark.parametrize("name", RUN)
def test_data_are_those_of_the_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[list[bytes]]()
    for seed in ("7", "7", "8"):
        with monkeypatch.context() as patch:
            simulation = Simulation(patch)
            simulate(name, "--seed", seed)
        tensors = [one for one in vars(simulation.case.tensors).values() if one is not None]
        drawn.append([one.contiguous().flatten().view(torch.uint8).numpy().tobytes() for one in tensors if one.numel()])
    assert drawn[0] == drawn[1] != drawn[2]
