"""The simulator against silicon: the same kernels on the same tiny inputs, y compared byte for byte.

Cases are made where the DSL is (`prepare_point`: compiles, simulates, writes a file) and run where the GPUs are, with torch and
cuda-bindings only.  Those of several ranks run twice: all ranks on one GPU, a stream each, and, where there are as many GPUs, one process
per GPU with symmetric memory.  Exact cases must have the simulator's bytes.  With random data `ex2.approx` and `rcp.approx` of silicon may
end in another last bit than the simulator's, which rounds correctly, and flip a code of the requantized activations: then y must stay
within what that explains (`reference.error_bound` with sums exact), and the elements that differ are counted.  How a Blackwell tensor core
aligns and cuts the products of an MMA nobody has told: with random data its sums, too, may differ, and y must be as near to the
simulator's as two results within the reference's bound can be.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megamoe_dsl.activation import ACTIVATIONS, SILU
from megamoe_dsl.arch import ARCHES, SM90, SM100, Arch
from megamoe_dsl.artifact.store import source_digest
from megamoe_dsl.blocks.sm100.pair_stage import block_ks
from megamoe_dsl.cases import Case, random_case
from megamoe_dsl.kernels.moe.sm90.config import BLOCK_M, PACKED_BLOCK_M
from megamoe_dsl.kernels.moe.sm100.config import Sm100Config
from megamoe_dsl.kernels.registry import find_kernel
from megamoe_dsl.problem import Problem
from megamoe_dsl.quant import ExpertWeights
from megamoe_dsl.recipe import RECIPES
from megamoe_dsl.reference import LayerInputs, error_bound
from megamoe_dsl.runtime.buffers import Inputs, RankBuffers
from megamoe_dsl.target import Target
from portable import dump

SOURCES = source_digest(find_kernel("moe_combine"))  # the fused kernel's among them
SUFFIX = ".silicon.gz"


@dataclass(frozen=True)
class Point:
    """A case by its name: launches with `counts[launch][rank]` tokens, one after another on the same buffers."""

    name: str
    block_m: int
    counts: tuple[tuple[int, ...], ...]
    exact: bool = True
    hidden: int = 512
    intermediate: int = 256
    experts_per_rank: int = 3
    topk: int = 2
    num_sms: int = 4
    cluster: int = 1
    block_k: int = 0  # of a stage, 0 for the one that is chosen
    recipe: str = "fp8xfp8"
    arch: str = SM90.name
    combine: str = "bf16"
    wide: bool = False  # E2M1 weights whose scales within 32 of K are as far apart as can be
    pool_rows: int | None = None
    unfused: bool = False  # a launch per stage
    activation: str = SILU
    biases: bool = False
    weigh_results: bool = False

    @property
    def ranks(self) -> int:
        return len(self.counts[0])

    @property
    def problem(self) -> Problem:
        ranks, most = len(self.counts[0]), max(max(one) for one in self.counts)
        experts = self.experts_per_rank * ranks
        clamp = 7.0 if ACTIVATIONS[self.activation].clampable else None
        names = ("recipe", "combine", "activation", "biases", "weigh_results")
        given = {"activation_clamp": clamp, **{name: getattr(self, name) for name in names}}
        return Problem(self.hidden, self.intermediate, experts, self.topk, ranks, most, **given)  # type: ignore[arg-type]


def points(arch: Arch, small: bool = False) -> list[Point]:
    """Of a GPU of this architecture; `small` are those for the sanitizer, and the smallest tile on two ranks."""
    found = points_of_hopper() if arch == SM90 else points_of_blackwell()
    least = {recipe: min(one.block_m for one in found if one.recipe == recipe) for recipe in find_kernel("mega_moe").recipes[arch.name]}
    return [one for one in found if not small or "once" in one.name or (one.ranks, one.block_m) == (2, least[one.recipe])]


def points_of_blackwell() -> list[Point]:
    """Of each recipe every tile at every BLOCK_K with one rank, three tiles with two ranks, one with four and one with eight; results that
    travel as E4M3; the layer in a launch per stage; `once`, a launch of each, for the sanitizer too."""
    found, point = [], partial(Point, arch=SM100.name)
    eight = ((16, 0, 9, 3, 1, 2, 150, 7), (1, 20, 0, 5, 0, 0, 130, 0))
    for recipe in Sm100Config.recipes:
        problem = Point("", 0, ((1,),), recipe=recipe).problem
        tiles = Sm100Config.tiles_of(problem)
        for exact in (True, False):
            kind = f"{recipe}_{'exact' if exact else 'random'}"
            for m in (tiles[0], 64, tiles[-1]):
                found.append(point(f"{kind}_r2_m{m}", m, ((m + 3, 9), (0, 5), (7, m)), exact, recipe=recipe))
            found.append(point(f"{kind}_r2_e4m3_results", 96, ((99, 9), (0, 5), (7, 96)), exact, recipe=recipe, combine="e4m3"))
            for m in tiles:
                for k in block_ks(problem.formats, problem.hidden, problem.intermediate):
                    found.append(point(f"{kind}_r1_m{m}_k{k}", m, ((m + 5,), (3,), (m // 2 + 1,)), exact, block_k=k, recipe=recipe))
        found.append(point(f"{recipe}_exact_r4_m32", 32, ((16, 0, 9, 3), (1, 20, 0, 5)), topk=3, recipe=recipe))
        found.append(point(f"{recipe}_exact_r8_m128", 128, eight, topk=3, recipe=recipe))
        staged = recipe in find_kernel("moe_fc1").recipes[SM100.name]
        for name, unfused in (("once", False), *((("once_stages", True),) if staged else ())):
            found.append(point(f"{recipe}_{name}", 32, ((9,),), experts_per_rank=2, topk=1, num_sms=2, recipe=recipe, unfused=unfused))
    return found


def points_of_hopper() -> list[Point]:
    """Every tile size with one rank, three with two ranks, one with four and with eight; pairs of CTAs with one rank and two; results that
    travel as E4M3; other activations, biases and top-k weights that combine applies; `once_...`, one launch of every main loop, of a ring
    and of stages, for the sanitizer too."""
    found = []
    for exact in (True, False):
        kind = "exact" if exact else "random"
        for m in BLOCK_M:
            found.append(Point(f"{kind}_r1_m{m}", m, ((m + 5,), (3,), (m // 2 + 1,)), exact))
        for m in (8, 32, 128):
            found.append(Point(f"{kind}_r2_m{m}", m, ((m + 3, 9), (0, 5), (7, m)), exact))
        # Experts with three blocks of tokens; more tokens than SM 0 tells alone.
        found.append(Point(f"{kind}_r1_pairs", 128, ((400,), (3,), (129,)), exact, cluster=2))
        found.append(Point(f"{kind}_r2_pairs", 128, ((200, 150), (0, 5), (7, 128)), exact, experts_per_rank=1, cluster=2))
    for m in (8, 16, 32, 128):
        found.append(Point(f"bf16_exact_r1_m{m}", m, ((m + 5,), (3,), (m // 2 + 1,)), recipe="bf16xbf16"))
        found.append(Point(f"bf16_random_r2_m{m}", m, ((m + 3, 9), (0, 5), (7, m)), False, recipe="bf16xbf16"))
    packed = {"recipe": "fp8xmxfp4"}
    for m in PACKED_BLOCK_M:
        found.append(Point(f"packed_exact_r1_m{m}", m, ((m + 5,), (3,), (m // 2 + 1,)), True, **packed))  # type: ignore[arg-type]
        found.append(Point(f"packed_random_r2_m{m}", m, ((m + 3, 9), (0, 5), (7, m)), False, **packed))  # type: ignore[arg-type]
    found.append(Point("packed_pairs_r1", 128, ((400,), (3,), (129,)), False, cluster=2, **packed))  # type: ignore[arg-type]
    found.append(Point("packed_pairs_r2", 128, ((200, 150), (0, 5), (7, 128)), False, experts_per_rank=1, cluster=2, **packed))  # type: ignore[arg-type]
    found.append(Point("packed_wide_r1_m16", 16, ((40,),), False, recipe="fp8xmxfp4", wide=True))
    for m in (8, 32, 128):
        found.append(Point(f"e4m3_results_exact_r2_m{m}", m, ((m + 3, 9), (0, 5), (7, m)), combine="e4m3"))
    found.append(Point("e4m3_results_random_r2_m128", 128, ((131, 9), (0, 5), (7, 128)), False, combine="e4m3"))
    found.append(Point("e4m3_results_packed_r1_m64", 64, ((69,), (3,)), False, recipe="fp8xmxfp4", combine="e4m3"))
    found.append(Point("exact_r4_m16", 16, ((16, 0, 9, 3), (1, 20, 0, 5)), num_sms=3, topk=3))
    found.append(Point("exact_r8_m128", 128, ((16, 0, 9, 3, 1, 2, 150, 7), (1, 20, 0, 5, 0, 0, 130, 0)), num_sms=3, topk=3))
    gpt_oss = {"activation": "swigluoai", "biases": True}
    for m in (8, 128):
        found.append(Point(f"gpt_oss_exact_r1_m{m}", m, ((m + 5,), (3,)), **gpt_oss))  # type: ignore[arg-type]
        found.append(Point(f"gpt_oss_packed_r2_m{m}", m, ((m + 3, 9), (7, m)), False, **packed, **gpt_oss))  # type: ignore[arg-type]
        found.append(Point(f"situ_r1_m{m}", m, ((m + 5,), (3,)), False, activation="situ"))
        found.append(Point(f"weighed_in_combine_r2_m{m}", m, ((m + 3, 9), (7, m)), False, biases=True, weigh_results=True))
    tiny = {"hidden": 256, "intermediate": 256, "experts_per_rank": 2, "topk": 1, "num_sms": 2}

    def once(name: str, block_m: int, tokens: int, **fields: Any) -> Point:
        return Point(f"once_{name}", block_m, ((tokens,),), **{**tiny, **fields})

    found += [once("m8", 8, 9), once("m128", 128, 140), once("pairs", 128, 9, hidden=512, cluster=2)]
    found += [once(f"packed_m{m}", m, m + 1, **packed) for m in PACKED_BLOCK_M]
    found.append(once("packed_pairs", 128, 150, hidden=512, cluster=2, **packed))
    found += [once(f"ring_m{m}", m, 300, pool_rows=128) for m in (8, 128)]
    found += [once(f"stages_m{m}", m, m + 1, unfused=True) for m in (8, 128)]
    found.append(once("stages_pairs", 128, 150, hidden=512, cluster=2, unfused=True))
    return [*found, once("stages_packed", 16, 20, unfused=True, **packed)]


def part_of(case: Case, counts: Sequence[int]) -> list[Inputs]:
    """The first tokens of every rank."""
    fields = ("x", "x_sf", "topk_idx", "topk_weights")
    return [Inputs(*(getattr(case, name)[rank][:n].contiguous() for name in fields)) for rank, n in enumerate(counts)]


def prepare_point(folder: Path, point: Point) -> str:
    """Compiles, simulates and writes a case; a line about it."""
    from megamoe_dsl.artifact.compile import compile_kernel
    from megamoe_dsl.kernels.moe.unfused.family import stage_configs
    from megamoe_dsl.runtime.simulated import SimulatedMoE

    torch.set_num_threads(1)
    problem = point.problem
    kernel = find_kernel("mega_moe")
    target = Target(ARCHES[point.arch], point.num_sms)
    fields = {"cluster": point.cluster} if target.arch == SM90 else {"block_k": point.block_k} if point.block_k else {}
    config = kernel.choose(problem, target, problem.max_tokens_per_rank, block_m=point.block_m, pool_rows=point.pool_rows, **fields)
    artifacts = [compile_kernel(one) for one in (stage_configs(config) if point.unfused else [config])]
    case = random_case(problem, [problem.max_tokens_per_rank] * problem.num_ranks, 1, mask=0.1, exact=point.exact)
    if point.wide:
        case = replace(case, weights=[with_wide_scales(one) for one in case.weights])
    layer = SimulatedMoE(artifacts, case.weights, race=False)
    outputs, bounds = [], []
    for counts in point.counts:
        given = part_of(case, counts)
        outputs.append(layer(given)[0])
        bounds.append(bound_of(case, given))
    record = {
        "point": asdict(point),
        "sources": SOURCES,
        "artifacts": artifacts,
        "case": case,
        "y": outputs,
        "bounds": bounds,
    }
    (folder / f"{point.name}{SUFFIX}").write_bytes(gzip.compress(dump(record), 6))
    return f"{point.name}: {max(one.resources.registers for one in artifacts)} registers, {len(outputs)} launches"


def with_wide_scales(weights: ExpertWeights) -> ExpertWeights:
    """The same codes; scales from 2^-14 to 1 times 2^-6 in every row and 128 of K."""
    draw = torch.Generator().manual_seed(1)

    def scales(like: torch.Tensor) -> torch.Tensor:
        return torch.randint(107, 122, like.shape, dtype=torch.uint8, generator=draw)

    return replace(weights, fc1_sf=scales(weights.fc1_sf), fc2_sf=scales(weights.fc2_sf))


def bound_of(case: Case, given: list[Inputs]) -> list[torch.Tensor]:
    """What another last bit of the approximate functions may do to y, and on Blackwell other sums; zero for exact cases."""
    if case.exact:
        return [torch.zeros(one.num_tokens, case.problem.hidden, dtype=torch.float64) for one in given]
    fields = [[getattr(one, name) for one in given] for name in ("x", "x_sf", "topk_idx", "topk_weights")]
    inputs = LayerInputs(case.problem, *fields, case.weights)
    if not RECIPES[case.problem.recipe].promoted:
        return [2 * one for one in error_bound(inputs)]
    return error_bound(inputs, sums_exact=True, accumulate="hopper")


def read(folder: Path, name: str) -> dict[str, Any]:
    """A case.  Raises LookupError where it was not prepared, or from other sources."""
    path = folder / f"{name}{SUFFIX}"
    if not path.exists():
        raise LookupError(f"{folder} has no case {name}: run prepare.py where the DSL is")
    record: dict[str, Any] = pickle.loads(gzip.decompress(path.read_bytes()))
    if record["sources"] != SOURCES:
        raise LookupError(
            f"{folder}: {name} was prepared from other sources, whose buffers may be laid out otherwise: run prepare.py again"
        )
    return record


def on_gpu(weights: ExpertWeights) -> ExpertWeights:
    return weights.map(lambda tensor: tensor.cuda())


def inputs_on_gpu(one: Inputs) -> Inputs:
    return replace(one, **{name: getattr(one, name).cuda() for name in ("x", "x_sf", "topk_idx", "topk_weights")})


def empty_output(tokens: int, hidden: int) -> torch.Tensor:
    """NaN everywhere, with an address even for no tokens."""
    return torch.full((max(1, tokens), hidden), float("nan"), dtype=torch.bfloat16, device="cuda")


def run_on_one_gpu(record: dict[str, Any], watchdog_ns: int) -> list[list[torch.Tensor]]:
    """y of every launch and rank; the ranks' kernels run side by side, each in its stream."""
    from megamoe_dsl.runtime.cuda_kernel import CudaKernel, encode_tensor_map
    from megamoe_dsl.runtime.watchdog import naming_the_wait

    artifacts, case = record["artifacts"], record["case"]
    buffers = [RankBuffers(artifacts[0].config, on_gpu(w), encode=encode_tensor_map) for w in case.weights]
    peers = torch.tensor([b.sym.data_ptr() for b in buffers], dtype=torch.int64, device="cuda")
    results_of = [b.results for b in buffers]  # made now, as the tensor maps: later they would wait for the device
    stages = [[(CudaKernel(one), b.rebound(one.config, b.sym)) for one in artifacts] for b in buffers]
    streams = [torch.cuda.Stream() for _ in buffers]
    tables = [bound.maps for rank in stages for _, bound in rank]
    assert (len(tables), len(results_of)) == (len(streams) * len(artifacts), len(streams))
    results = []
    for counts in record["point"]["counts"]:
        given = [inputs_on_gpu(one) for one in part_of(case, counts)]
        y = [empty_output(n, case.problem.hidden) for n in counts]
        for one, rank in zip(given, buffers, strict=True):
            rank.load(one)
        launches = [
            [(kernel, b.arguments(peers.data_ptr(), out.data_ptr(), n, rank, watchdog_ns)) for kernel, b in stages[rank]]
            for rank, (out, n) in enumerate(zip(y, counts, strict=True))
        ]
        # Nothing but launches from here: a rank's kernel waits for the others', and what else the host asks for may wait for it.
        with naming_the_wait(*buffers):
            torch.cuda.synchronize()
            for stream, mine in zip(streams, launches, strict=True):
                with torch.cuda.stream(stream):
                    for kernel, values in mine:
                        kernel(values)
            torch.cuda.synchronize()
        results.append([out[:n].cpu() for out, n in zip(y, counts, strict=True)])
    return results


def work(rank: int, names: list[str], report: Callable[[int, dict[str, Any]], None], *, ranks: int, folder: Path, watchdog_ns: int) -> None:
    """One process of `ranks`, a GPU each: the cases `names`, which have as many, through symmetric memory."""
    import torch.distributed as dist

    from megamoe_dsl.runtime.rank_kernel import RankKernel
    from megamoe_dsl.runtime.symmetric_memory import SymmetricBuffer

    for index, name in enumerate(names):
        record = read(folder, name)
        case = record["case"]
        symmetric = SymmetricBuffer.allocate(case.problem, record["artifacts"][0].arch, pool_rows=record["artifacts"][0].config.pool_rows)
        kernel = RankKernel(record["artifacts"], symmetric, on_gpu(case.weights[rank]), watchdog_ns)
        mine = []
        for counts in record["point"]["counts"]:
            kernel.buffers.load(inputs_on_gpu(part_of(case, counts)[rank]))
            y = empty_output(counts[rank], case.problem.hidden)[: counts[rank]]
            dist.barrier()
            kernel(y)
            kernel.synchronize()
            mine.append(y.cpu().view(torch.int16))
        everyone: list[Any] = [None] * case.problem.num_ranks
        dist.all_gather_object(everyone, mine)
        symmetric.close()
        got = [[theirs[launch].view(torch.bfloat16) for theirs in everyone] for launch in range(len(mine))]
        report(index, asdict(judge(record, got)))


@dataclass(frozen=True)
class Verdict:
    """Elements of y over all launches and ranks: how many there are, differ from the simulator's bits, and leave the bound."""

    elements: int
    unequal: int
    violations: int

    @property
    def line(self) -> str:
        if self.violations:
            return f"WRONG: {self.unequal} of {self.elements} elements differ, {self.violations} beyond the bound"
        return f"ok: {self.elements} elements, " + (f"{self.unequal} differ within the bound" if self.unequal else "all bits equal")


def judge(record: dict[str, Any], got: list[list[torch.Tensor]]) -> Verdict:
    """Silicon's y against the simulator's."""
    elements = unequal = violations = 0
    for launch, simulated, bounds in zip(got, record["y"], record["bounds"], strict=True):
        for mine, theirs, bound in zip(launch, simulated, bounds, strict=True):
            assert mine.shape == theirs.shape
            differs = mine.contiguous().view(torch.int16) != theirs.view(torch.int16)
            within = (mine.double() - theirs.double()).abs() <= bound
            if record["case"].exact:
                within = ~differs
            elements += mine.numel()
            unequal += int(differs.sum())
            violations += int((differs & ~within).sum())
    return Verdict(elements, unequal, violations)
