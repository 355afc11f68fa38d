"""What one trial of the fuzzer runs, its text, a JSON object that repeats it, and the inputs and weights of its calls; strategies of
hypothesis for trials, which shrink in each field towards what `testing` says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st

from megamoe_dsl.artifact.store import ArtifactError, describe_config, read_config
from megamoe_dsl.cases import Case, random_case, random_inputs, random_routing, random_weights
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.config import MegaMoeConfig
from megamoe_dsl.kernels.registry import choose
from megamoe_dsl.problem import Problem, ProblemError
from megamoe_dsl.quant import ExpertWeights, encode_e4m3
from megamoe_dsl.target import Target
from megamoe_dsl.testing import configs_sm90, configs_sm100, problems

from .options import WAYS

ROUTINGS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {},
    "zipf": {"skew": True},
    "one": {"target_expert": 0},
    "masked": {"mask": 0.5},
    "none": {"mask": 1.0},
}
"""How tokens choose experts, as arguments of `cases.random_routing`."""
EXACT, CANCELLING = "exact", "cancelling"
VALUES = (EXACT, "normal", "heavy", "subnormal", "zeros", "equal", CANCELLING)
"""Data: sums exact in any order; normal numbers; those with scales over 24 binades; subnormal codes; half of the codes 0 or -0; all tokens
of a rank the same; heavy-tailed ones of which the second half of K takes away the first, so that sums are nothing but roundings, which
another order of additions changes."""


@dataclass(frozen=True)
class FuzzedCall:
    """Tokens of every rank, routing and values as in `ROUTINGS` and `VALUES`, and the seed of both."""

    tokens: tuple[int, ...]
    routing: str = "uniform"
    values: str = EXACT
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for name, allowed in (("routing", tuple(ROUTINGS)), ("values", VALUES)):
            if getattr(self, name) not in allowed:
                raise ProblemError(name, getattr(self, name), f"one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Trial:
    """Calls of one layer, one after another on the same buffers.

    config    of the fused kernel
    other     another tile for the same problem, whose y must have the same bits; None: none
    unfused   whether the layer in a launch per stage must have the same bits, too
    schedule  seed of the simulator's schedule
    """

    config: MegaMoeConfig
    calls: tuple[FuzzedCall, ...]
    other: MegaMoeConfig | None = None
    unfused: bool = False
    schedule: int = 0

    def to_json(self) -> str:
        named = {name: shortened(one) for name, one in (("config", self.config), ("other", self.other)) if one is not None}
        rest = {"unfused": self.unfused, "schedule": self.schedule}
        calls = [given_fields(one) for one in self.calls]
        return json.dumps({**named, "calls": calls, **{name: value for name, value in rest.items() if value}})


def given_fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass, as JSON values, that do not have their default."""
    values = asdict(value)
    return {one.name: values[one.name] for one in fields(value) if one.default is MISSING or getattr(value, one.name) != one.default}


def shortened(config: MegaMoeConfig) -> dict[str, Any]:
    """A configuration as `read_config` takes it."""
    kept = given_fields(config)
    described = {name: value for name, value in describe_config(config).items() if name in ("kernel", "kind") or name in kept}
    return {**described, "problem": given_fields(config.problem)}


@dataclass(frozen=True)
class ExpertTrial:
    """Calls of `moe`, one after another, each in one of `WAYS`; the layer of one GPU, which weighs results, must have the same bits."""

    problem: Problem
    calls: tuple[FuzzedCall, ...]
    ways: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"problem": given_fields(self.problem), "calls": [given_fields(one) for one in self.calls], "ways": self.ways})


AnyTrial = Trial | ExpertTrial


def read_trial(text: str) -> AnyTrial:
    """What `to_json` of either wrote.  Raises `ProblemError` for other text."""
    try:
        given = json.loads(text)
        calls = tuple(FuzzedCall(**one) for one in given.pop("calls"))
        if "problem" in given:
            return ExpertTrial(Problem(**given["problem"]), calls, tuple(given["ways"]))
        configs: Any = {name: read_config(given.pop(name)) for name in ("config", "other") if name in given}
        return Trial(calls=calls, **configs, **given)
    except (ArtifactError, AttributeError, LookupError, RecursionError, TypeError, json.JSONDecodeError) as error:
        raise ProblemError("trial", text[:80], f"a trial as the fuzzer prints it ({error})") from None


BINADES = 12
PACKED_BINADES = 2
PACKED_REACH = 7
"""Heavy-tailed scales are moved by up to so many powers of two either way; those of weights that Hopper decodes, which must not lie farther
apart than 2^14 in a block, by fewer, and no farther from the tensor's median than the last."""
UNSCALED_BINADES = 3.0
"""Standard deviation of the powers of two that values without scales are multiplied with."""
DOWN = 20
"""Scales of subnormal codes are so many powers of two smaller, but for those of weights that Hopper decodes: a kernel's product of scales
would differ from the reference's where it is no normal FP32 number."""
RAW = {torch.bfloat16: torch.int16}
"""What bits of codes are seen as: of others than these as bytes."""
SIGNS = {torch.float8_e4m3fn: 0x80, torch.uint8: 0x88, torch.bfloat16: -0x8000}
SUBNORMAL = {torch.float8_e4m3fn: 0x87, torch.uint8: 0x99, torch.bfloat16: -0x7F81}
"""Bits of a byte of codes, E4M3 or two E2M1, or of a BF16: of the signs, and those that are set in subnormal numbers, too."""


def case_of(problem: Problem, call: FuzzedCall) -> Case:
    """The call's data.  Weights depend on the problem and on the kind of values, not on the seed, but for exact data."""
    routing = ROUTINGS[call.routing]
    if call.values == EXACT:
        return random_case(problem, call.tokens, call.seed, **routing)
    generator = torch.Generator().manual_seed(call.seed)
    idx = random_routing(problem, list(call.tokens), generator, **routing)
    drawn = [random_inputs(problem, rank, count, call.seed) for rank, count in enumerate(call.tokens)]
    pairs = [changed(one.x, one.x_sf, call.values, generator) for one in drawn]
    if call.values == CANCELLING:
        pairs = [(repeated(x, 1), repeated(sf, 1)) for x, sf in pairs]
    x, sf = zip(*pairs, strict=True)
    weights = list(weights_of(problem, call.values))
    return Case(problem, list(x), list(sf), idx, [one.topk_weights for one in drawn], weights, exact=False)


@lru_cache(4)
def weights_of(problem: Problem, values: str) -> tuple[ExpertWeights, ...]:
    """Weights of every rank's experts."""
    generator, found = torch.Generator().manual_seed(0), []
    decoded = problem.formats.decodes
    for rank in range(problem.num_ranks):
        drawn = random_weights(problem, rank, 0)
        fc1, fc1_sf = changed(drawn.fc1, drawn.fc1_sf, values, generator, decoded=decoded)
        fc2, fc2_sf = changed(drawn.fc2, drawn.fc2_sf, values, generator, decoded=decoded)
        made = replace(drawn, fc1=fc1, fc1_sf=fc1_sf, fc2=fc2, fc2_sf=fc2_sf)
        found.append({"equal": drawn, CANCELLING: cancelling_weights(made, fc2=not decoded)}.get(values, made))
    return tuple(found)


def changed(
    codes: torch.Tensor, scales: torch.Tensor, values: str, generator: torch.Generator, decoded: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal numbers as codes with scales, E4M3 or packed E2M1, made what `VALUES` says."""
    raw = codes.view(RAW.get(codes.dtype, torch.uint8))
    if values == "equal":
        return raw[:1].expand_as(raw).contiguous().view(codes.dtype), scales[:1].expand_as(scales).contiguous()
    if values in ("heavy", CANCELLING) and codes.dtype == torch.bfloat16:
        return codes * torch.exp2(torch.randn(codes.shape, generator=generator) * UNSCALED_BINADES).bfloat16(), scales
    if values in ("heavy", CANCELLING):
        normal, other = torch.randn(2, *scales.shape, generator=generator)
        tails = (3 * normal / other.abs().clamp(min=1e-3)).round()
        if scales.dtype == torch.float32:
            scales = scales * (1 + torch.rand(scales.shape, generator=generator))  # all 24 bits
        binades = PACKED_BINADES if decoded else BINADES
        found = moved(scales, tails.clamp(-binades, binades).int())
        if decoded:
            middle = int(found.median())
            found = found.clamp(max(1, middle - PACKED_REACH), middle + PACKED_REACH)
        return codes, found
    if values == "subnormal":
        down = torch.full(scales.shape, 0 if decoded else -DOWN, dtype=torch.int32)
        return (raw & SUBNORMAL[codes.dtype]).view(codes.dtype), moved(scales, down)
    if values == "zeros":
        zero = torch.rand(raw.shape, generator=generator) < 0.5
        return torch.where(zero, raw & SIGNS[codes.dtype], raw).view(codes.dtype), scales
    return codes, scales


def cancelling_weights(weights: ExpertWeights, *, fc2: bool) -> ExpertWeights:
    """Of Linear1, and with `fc2` of Linear2, the second half of K is minus the first; gate and up have their rows twice, so that Linear2's
    tokens have halves, too.  Where halves are no whole blocks of scales, sums keep more.  A Linear2 whose scales are all powers of two
    within a few binades would have no roundings."""

    def negated(codes: torch.Tensor) -> torch.Tensor:
        raw = repeated(codes, 2).view(RAW.get(codes.dtype, torch.uint8))
        raw[..., raw.shape[2] // 2 :] ^= SIGNS[codes.dtype]
        return raw.view(codes.dtype)

    def of_gate_and_up(values: torch.Tensor) -> torch.Tensor:
        return repeated(values.view(torch.uint8).unflatten(1, (2, -1)), 2).flatten(1, 2).view(values.dtype)

    fc1, fc1_sf = negated(of_gate_and_up(weights.fc1)), repeated(of_gate_and_up(weights.fc1_sf), 2)
    second = {"fc2": negated(weights.fc2), "fc2_sf": repeated(weights.fc2_sf, 2)} if fc2 else {}
    return replace(weights, fc1=fc1, fc1_sf=fc1_sf, **second)


def repeated(values: torch.Tensor, dim: int) -> torch.Tensor:
    """A copy whose second half along a dimension is the first, if it has halves."""
    raw = values.clone().view(torch.uint8)
    step = values.element_size() if dim == values.dim() - 1 else 1
    half = raw.shape[dim] // 2
    if raw.shape[dim] % (2 * step) == 0:
        raw.narrow(dim, half, half).copy_(raw.narrow(dim, 0, half).clone())
    return raw.view(values.dtype)


def moved(scales: torch.Tensor, binades: torch.Tensor) -> torch.Tensor:
    """FP32, UE8M0 or E4M3 scales times powers of two."""
    if scales.dtype == torch.uint8:
        return (scales.int() + binades).clamp(1, 254).to(torch.uint8)
    found = torch.ldexp(scales.float(), binades)
    return found if scales.dtype == torch.float32 else encode_e4m3(found)


MAKERS = {"sm_90a": configs_sm90, "sm_100a": configs_sm100}
"""Strategies of configurations by architecture."""


@dataclass(frozen=True)
class Sizes:
    """The most of everything that a trial may have."""

    hidden: int
    intermediate: int
    experts_per_rank: int
    topk: int
    ranks: int
    tokens: int
    sms: int
    calls: int


SIMULATED = Sizes(hidden=512, intermediate=256, experts_per_rank=4, topk=3, ranks=2, tokens=20, sms=4, calls=3)
ON_A_GPU = Sizes(hidden=1024, intermediate=512, experts_per_rank=32, topk=8, ranks=1, tokens=256, sms=132, calls=4)


@st.composite
def layers(draw: st.DrawFn, sizes: Sizes, arch: str) -> MegaMoeConfig:
    """Configurations of layers of any shape, with biases or a ring or neither."""
    most = {"max_experts_per_rank": sizes.experts_per_rank, "max_topk": sizes.topk, "max_ranks": sizes.ranks, "max_tokens": sizes.tokens}
    whole = arch == "sm_100a" or draw(st.booleans())
    shape = problems(max_hidden=sizes.hidden, max_intermediate=sizes.intermediate, whole_tiles=whole, **most)
    try:
        rows = draw(st.sampled_from((None, 128, 256))) if arch == "sm_90a" else None
        problem = replace(draw(shape), biases=draw(st.booleans()), weigh_results=draw(st.booleans()))
        return draw(MAKERS[arch](st.just(problem), max_sms=sizes.sms)).replace(pool_rows=rows)
    except (ProblemError, ConfigError):
        reject()


@st.composite
def calls_in_a_row(draw: st.DrawFn, problem: Problem, most: int) -> tuple[FuzzedCall, ...]:
    """Calls of a layer, each of which differs from the one before in one thing or two."""
    count = st.one_of(st.integers(0, problem.max_tokens_per_rank), st.just(problem.max_tokens_per_rank))
    named: dict[str, st.SearchStrategy[Any]] = {
        "tokens": st.tuples(*[count] * problem.num_ranks),
        "routing": st.sampled_from(tuple(ROUTINGS)),
        "values": st.sampled_from(VALUES),
        "seed": st.integers(0, 999),
    }
    call, calls = draw(st.builds(FuzzedCall, **named)), []
    for field in draw(st.lists(st.sampled_from(tuple(named)), max_size=most - 1)):
        if draw(st.booleans()):  # so that a call shrinks away of which only the next, which differs in one thing, matters
            calls.append(call)
        call = replace(call, **{field: draw(named[field])})
    return (*calls, call)


@st.composite
def expert_trials(draw: st.DrawFn, sizes: Sizes, wanted: tuple[str, ...] = WAYS) -> ExpertTrial:
    """In FP8, and in BF16 without a clamp, whose calls have gradients."""
    most = {"max_experts_per_rank": sizes.experts_per_rank, "max_topk": sizes.topk, "max_tokens": sizes.tokens}
    shape = draw(problems(max_hidden=sizes.hidden, max_intermediate=sizes.intermediate, max_ranks=1, whole_tiles=True, **most))
    in_fp8 = tuple(one for one in wanted if one in WAYS[:3])
    recipe = draw(st.sampled_from(("fp8xfp8", "bf16xbf16") if in_fp8 else ("bf16xbf16",)))
    clamp, ways = (None, wanted) if recipe == "bf16xbf16" else (shape.activation_clamp, in_fp8)
    problem = replace(shape, fast_math=True, weigh_results=True, recipe=recipe, activation_clamp=clamp)
    calls = draw(calls_in_a_row(problem, sizes.calls))
    return ExpertTrial(problem, calls, tuple(draw(st.sampled_from(ways)) for _ in calls))


@st.composite
def trials(draw: st.DrawFn, sizes: Sizes, arches: tuple[str, ...] = tuple(MAKERS)) -> Trial:
    """Shrinks to one call of no tokens, of SM90, without comparisons with another tile and with the unfused layer."""
    config = draw(layers(sizes, draw(st.sampled_from(arches))))
    calls = draw(calls_in_a_row(config.problem, sizes.calls))
    tile = draw(st.sampled_from((None, *type(config).tiles_of(config.problem))))
    try:
        other = None if tile is None else choose(config.problem, Target(config.arch, config.num_sms), 1, block_m=tile)
    except ConfigError:
        other = None
    return Trial(config, calls, other, draw(st.booleans()), draw(st.integers(0, 999)))
